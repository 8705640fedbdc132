"""The tensor store of one process, assembled from tiers, pins, announcements and makers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import Message

from lookout.runtime.store.announcing import Announcements, Holdings
from lookout.runtime.store.errors import LineageBrokenError
from lookout.runtime.store.labels import Label, filled, labelled
from lookout.runtime.store.making import Makers, Materializer
from lookout.runtime.store.pins import Pins
from lookout.runtime.store.settings import StoreSettings
from lookout.runtime.store.tensors import Array, Rows, select
from lookout.runtime.store.tiers import Tiers
from lookout.runtime.store.unread import Pressure, Unread
from lookout.v1.lineage_pb2 import TensorRef


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store's bytes and tensors now, and its counts since the start."""

    memory_bytes: int
    disk_bytes: int
    reserve_bytes: int
    pinned_bytes: int
    tensors: int
    hits: int
    misses: int
    evicted: int
    corrupt: int
    materialized: int


class TensorStore:
    """Holds one process's tensors, which are found by reference. Thread-safe; returned arrays are read-only
    and shared.

    Tensors that nobody has read yet (`put(..., unread=)`) are never evicted, only moved to disk. `published`
    and `consumed` tell the store when they have been read; `pressure` names the partitions that should pause
    meanwhile.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self._announcements = Announcements()
        self._pins = Pins(settings.unread_bytes, settings.unread_seconds, settings.camera_bytes)
        self._makers = Makers(settings.reserve_workers)
        self._tiers = Tiers(settings, kept=self._kept, left=self._left)
        self._lock = self._tiers.lock  # guards the pins too: a tensor is added and pinned in one step

    @property
    def holdings(self) -> Holdings | None:
        """The object that is called when the store begins or ceases to hold a directory entry; None:
        nobody.
        """
        return self._announcements.holdings

    @holdings.setter
    def holdings(self, holdings: Holdings | None) -> None:
        self._announcements.holdings = holdings

    # -- holding

    def put(
        self, ref: TensorRef, array: Array, unread: Unread | None = None, dtype: str | None = None
    ) -> TensorRef:
        """Store `array`; return `ref` with shape, dtype, length and checksum filled in.

        If the tensor is already held, only its pin is renewed. Without `unread`, a full store drops the new
        tensor rather than an unread one.

        Args:
            ref: The tensor's reference.
            array: Its values; nobody may write to the array afterwards.
            unread: Pins the tensor until its consumer has read it.
            dtype: The tensor's dtype. For "bfloat16", the array holds the bits as uint16. None: the
                array's dtype.

        Raises:
            StoreFullError: Unread tensors leave no room.
            CameraQuotaError: This camera's unread tensors leave no room.
            TensorCorruptError: The dtype cannot be sent.
        """
        label, array = labelled(ref, array, dtype)
        with self._lock:
            if unread is not None:
                # Checked before anything is evicted, so that a rejected tensor changes nothing.
                self._pins.check(ref.camera, label)
            spilling = self._tiers.add(label, array, pinned=unread is not None)
            if unread is not None:
                self._pins.add(label, ref.camera, unread)
        # Outside the lock, because a slow disk must not delay readers of other tensors.
        self._tiers.write(spilling)
        self._announcements.tell(label.entry)
        return filled(ref, label)

    def get(self, ref: TensorRef, rows: Rows | None = None) -> Array | None:
        """Return the tensor, or rows of it, if this process holds it intact; else None."""
        array = self._read(ref.id)
        return None if array is None else select(array, rows)

    def drop(self, ref: TensorRef) -> None:
        """Drop a tensor, pinned or not."""
        with self._lock:
            self._tiers.forget(ref.id)
        self._announcements.tell()

    def forget_camera(self, camera: str) -> int:
        """Drop every tensor of a camera, pinned or not. Tensors can be recomputed unless their time was
        erased.

        Returns:
            The number of tensors dropped.
        """
        with self._lock:
            keys = self._tiers.keys_of(camera)
            for key in keys:
                self._tiers.forget(key)
        self._announcements.tell()
        return len(keys)

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, TensorRef) and ref.id in self._tiers

    def lines(self) -> list[str]:
        """Return the directory entries of which this store holds tensors."""
        return self._announcements.entries()

    def stats(self) -> StoreStats:
        """Return the bytes and tensors held now, and counts since the start."""
        tiers = self._tiers
        with self._lock:
            return StoreStats(
                memory_bytes=tiers.memory.used,
                disk_bytes=tiers.disk.used,
                reserve_bytes=tiers.reserve.used,
                pinned_bytes=tiers.pinned_bytes,
                tensors=len(tiers),
                hits=tiers.counts.hits,
                misses=tiers.counts.misses,
                evicted=tiers.counts.evicted,
                corrupt=tiers.counts.corrupt,
                materialized=self._makers.made,
            )

    def _read(self, key: str) -> Array | None:
        array = self._tiers.read(key)
        self._announcements.tell()  # a damaged file is forgotten when it is read
        return array

    # -- unread

    def published(self, refs: Iterable[TensorRef], partition: int, offset: int) -> None:
        """Note that the record at `offset` of the output topic carries these references.

        The tensors count as read once that record is.
        """
        with self._lock:
            self._pins.published(refs, partition, offset)

    def consumed(self, partition: int, committed: int) -> None:
        """Note the consumer's committed offset in the output topic, which is the next offset that it will
        read.
        """
        with self._lock:
            self._tiers.unpin(self._pins.consumed(partition, committed))

    def consumed_all(self, committed: Mapping[int, int]) -> None:
        """Call `consumed` for every partition."""
        for partition, offset in committed.items():
            self.consumed(partition, offset)

    def release(self, refs: Iterable[TensorRef]) -> None:
        """Unpin tensors that nobody will read, because their transaction was aborted. They are held while
        there is room.
        """
        with self._lock:
            self._tiers.unpin(self._pins.release(refs))

    def release_partition(self, partition: int) -> None:
        """Unpin the tensors of a partition that another worker owns now. They are held while there is
        room.
        """
        with self._lock:
            self._tiers.unpin(self._pins.release_partition(partition))

    def release_camera(self, camera: str) -> None:
        """Unpin the tensors of a camera whose state will be loaded again. They are held while there is
        room.
        """
        with self._lock:
            self._tiers.unpin(self._pins.release_camera(camera))

    def unread_bytes(self, camera: str) -> int:
        """Return the bytes of a camera that nobody has read yet."""
        with self._lock:
            return self._pins.bytes_of(camera)

    def check_quota(self, camera: str) -> None:
        """Check that a camera may have more unread tensors.

        Raises:
            CameraQuotaError: The camera's unread tensors leave no room.
        """
        with self._lock:
            self._pins.check(camera)

    def pressure(self) -> Pressure:
        """Return how much is unread and which partitions should pause."""
        with self._lock:
            return self._pins.pressure()

    # -- recomputing

    def makes(self, stage: int, materializer: Materializer) -> None:
        """Register the function that recomputes a stage's tensors."""
        self._makers.register(stage, materializer)

    def can_make(self, ref: TensorRef) -> bool:
        """Whether this process can recompute a tensor."""
        return self._makers.can_make(ref)

    def materialize(self, ref: TensorRef, record: Message, rows: Rows | None = None) -> Array:
        """Return a tensor; if it is not held, recompute it and keep it in the reserve.

        Concurrent requests for the same tensor share one computation.

        Raises:
            LineageBrokenError: The recomputed tensor does not have the shape in the reference.
            StoreError: No materializer is registered for the stage.
            Exception: What the materializer raises.
        """
        tensor = self._read(ref.id)
        if tensor is None:
            tensor = self._makers.make(ref, record, lambda made: self._keep_made(ref, made))
        return select(tensor, rows)

    def _keep_made(self, ref: TensorRef, made: Array) -> Array:
        label, array = labelled(ref, made, ref.dtype or None)
        if ref.shape and label.shape != tuple(ref.shape):
            raise LineageBrokenError(
                f"{ref.id} the recomputed tensor has shape {label.shape}, but its record says "
                f"{tuple(ref.shape)}"
            )
        with self._lock:
            self._tiers.add_to_reserve(label, array)
        self._announcements.tell(label.entry)
        return array

    # -- callbacks of the tiers

    def _kept(self, label: Label) -> None:
        self._announcements.add(label.entry)

    def _left(self, label: Label) -> None:
        self._pins.forget(label.key)
        self._announcements.remove(label.entry)
