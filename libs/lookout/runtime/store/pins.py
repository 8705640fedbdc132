"""Tracks unread tensors, limits how much each camera may have unread, and decides which partitions should
pause.
"""

from collections.abc import Iterable

from lookout.runtime.store.errors import CameraQuotaError
from lookout.runtime.store.labels import Label
from lookout.runtime.store.unread import Gauge, Pressure, Unread, UnreadIndex
from lookout.v1.lineage_pb2 import TensorRef


class Pins:
    """The tensors that nobody has read yet. Not thread-safe: the owner holds a lock.

    Methods that unpin tensors return the keys of the tensors that they unpinned.

    Args:
        unread_bytes: Unread bytes of all cameras at which partitions pause.
        unread_seconds: Unread stream time of a camera, in seconds, at which its partition pauses.
        camera_bytes: Unread bytes that one camera may have.
    """

    def __init__(self, unread_bytes: int, unread_seconds: float, camera_bytes: int) -> None:
        self._camera_bytes = camera_bytes
        self._index = UnreadIndex()
        self._gauge = Gauge(unread_bytes, unread_seconds)
        # the cached pressure, with the index's number of changes at that time
        self._pressure: tuple[int, Pressure] | None = None

    def check(self, camera: str, label: Label | None = None) -> None:
        """Check that a camera may pin this tensor; without a label, that it may pin any tensor.

        A camera without unread tensors may pin a tensor of any size.

        Raises:
            CameraQuotaError: The camera's unread tensors leave no room for it.
        """
        pinned_bytes, limit = self._index.bytes_of(camera), self._camera_bytes
        size = 1 if label is None else label.length
        # A retried record puts tensors that it has already pinned; these need no additional room.
        replaces = label is not None and label.key in self._index
        if not replaces and pinned_bytes and pinned_bytes + size > limit:
            raise CameraQuotaError(
                f"{pinned_bytes} bytes of camera {camera} are unread; the limit is {limit} (a third of "
                f"LOOKOUT_STORE__UNREAD_BYTES)"
            )

    def add(self, label: Label, camera: str, unread: Unread) -> None:
        """Pin a tensor; if it is already pinned, replace what is known about its reader."""
        self._index.add(label.key, camera, label.length, unread)

    def forget(self, key: str) -> None:
        """Drop a tensor that is gone."""
        self._index.remove(key)

    def bytes_of(self, camera: str) -> int:
        """Return the unread bytes of a camera."""
        return self._index.bytes_of(camera)

    def pressure(self) -> Pressure:
        """Return how much is unread and which partitions should pause; cached until something changes."""
        if self._pressure is None or self._pressure[0] != self._index.changes:
            self._pressure = self._index.changes, self._gauge.read(self._index)
        return self._pressure[1]

    def published(self, refs: Iterable[TensorRef], partition: int, offset: int) -> None:
        """Note that the record at an offset of the output topic carries these references."""
        for ref in refs:
            self._index.published(ref.id, partition, offset)

    def consumed(self, partition: int, committed: int) -> list[str]:
        """Unpin the tensors of records before an offset, because the consumer has read them."""
        return self._ended(self._index.before(partition, committed))

    def release(self, refs: Iterable[TensorRef]) -> list[str]:
        """Unpin tensors that nobody will read."""
        return self._ended(ref.id for ref in refs)

    def release_partition(self, partition: int) -> list[str]:
        """Unpin the tensors of a partition that another worker owns now."""
        return self._ended(self._index.of_partition(partition))

    def release_camera(self, camera: str) -> list[str]:
        """Unpin the tensors of a camera whose state will be loaded again, here or elsewhere."""
        return self._ended(self._index.of_camera(camera))

    def _ended(self, keys: Iterable[str]) -> list[str]:
        pinned = [key for key in keys if key in self._index]
        for key in pinned:
            self._index.remove(key)
        return pinned
