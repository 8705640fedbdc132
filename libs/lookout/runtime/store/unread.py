"""Indexes the unread tensors, and decides which partitions must pause because of them."""

import heapq
from dataclasses import dataclass, field

# Fraction of a limit at which a paused partition resumes (`Gauge`).
_EASE = 0.75


@dataclass(frozen=True, slots=True)
class Unread:
    """Facts about an unread tensor: its output record's partition, and its stream time in seconds."""

    partition: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """How much is unread, and which partitions should not produce more for now."""

    unread_bytes: int
    unread_seconds: float
    paused: frozenset[int]


@dataclass(slots=True)
class Gauge:
    """Decides which partitions pause.

    If there are too many unread bytes in total, every partition with at least an equal share of them pauses.
    A partition also pauses if a camera's unread stream time exceeds its limit. It resumes at three quarters
    of the limit, so that it does not alternate between pausing and reading.
    """

    unread_bytes: int
    unread_seconds: float
    paused: set[int] = field(default_factory=set)

    def read(self, unread: "UnreadIndex") -> Pressure:
        """Return how much is unread and which partitions pause. The cost grows with the number of cameras
        that have unread tensors, not with the number of tensors.
        """
        lengths = unread.bytes_by_partition
        total = sum(lengths.values())
        longest = {
            partition: max(camera.seconds for camera in cameras.values())
            for partition, cameras in unread.cameras.items()
        }
        share = total / max(len(lengths), 1)
        self.paused = {
            partition
            for partition, length in lengths.items()
            if (length >= share and total >= self._mark(partition, self.unread_bytes))
            or longest[partition] >= self._mark(partition, self.unread_seconds)
        }
        return Pressure(total, max(longest.values(), default=0.0), frozenset(self.paused))

    def _mark(self, partition: int, limit: float) -> float:
        return limit * _EASE if partition in self.paused else limit


@dataclass(slots=True)
class _Item:
    unread: Unread
    camera: str
    length: int
    offset: int | None = None  # of the record that carries it; unknown until its transaction commits


@dataclass(slots=True)
class _Camera:
    """The unread tensors of one camera in one partition."""

    keys: set[str] = field(default_factory=set)
    seconds: float = 0.0


class UnreadIndex:
    """The unread tensors, indexed by partition, camera and offset. Not thread-safe: the owner holds a
    lock.
    """

    def __init__(self) -> None:
        self.cameras: dict[int, dict[str, _Camera]] = {}  # partition -> camera
        self.bytes_by_partition: dict[int, int] = {}
        self.changes = 0
        self._items: dict[str, _Item] = {}
        self._partitions: dict[str, set[int]] = {}  # camera -> partitions in which it has unread tensors
        self._bytes: dict[str, int] = {}  # by camera
        self._offsets: dict[int, list[tuple[int, str]]] = {}  # partition -> heap; entries may be stale

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def bytes_of(self, camera: str) -> int:
        """Return the unread bytes of a camera."""
        return self._bytes.get(camera, 0)

    def add(self, key: str, camera: str, length: int, unread: Unread) -> None:
        """Add an unread tensor; an earlier entry for the same tensor is replaced."""
        self.remove(key)
        self.changes += 1
        self._items[key] = _Item(unread, camera, length)
        tensors = self.cameras.setdefault(unread.partition, {}).setdefault(camera, _Camera())
        tensors.keys.add(key)
        tensors.seconds += unread.seconds
        self._partitions.setdefault(camera, set()).add(unread.partition)
        self._bytes[camera] = self._bytes.get(camera, 0) + length
        self.bytes_by_partition[unread.partition] = self.bytes_by_partition.get(unread.partition, 0) + length

    def remove(self, key: str) -> None:
        """Remove a tensor that is no longer unread."""
        item = self._items.pop(key, None)
        if item is None:
            return
        self.changes += 1
        partition, camera = item.unread.partition, item.camera
        self._bytes[camera] -= item.length
        self.bytes_by_partition[partition] -= item.length
        tensors = self.cameras[partition][camera]
        tensors.keys.discard(key)
        tensors.seconds -= item.unread.seconds
        if tensors.keys:
            return
        del self.cameras[partition][camera]
        self._partitions[camera].discard(partition)
        if not self._partitions[camera]:
            del self._partitions[camera], self._bytes[camera]
        if not self.cameras[partition]:
            del self.cameras[partition], self.bytes_by_partition[partition]
            self._offsets.pop(partition, None)

    def published(self, key: str, partition: int, offset: int) -> None:
        """Note that the record at an offset of the output topic carries the tensor."""
        item = self._items.get(key)
        if item is None:
            return
        if item.unread.partition != partition:
            self.add(key, item.camera, item.length, Unread(partition, item.unread.seconds))
        self._items[key].offset = offset
        heapq.heappush(self._offsets.setdefault(partition, []), (offset, key))

    def before(self, partition: int, committed: int) -> list[str]:
        """Return the keys of tensors whose records are before an offset."""
        heap, keys = self._offsets.get(partition, []), []
        while heap and heap[0][0] < committed:
            offset, key = heapq.heappop(heap)
            item = self._items.get(key)
            if item is not None and (item.unread.partition, item.offset) == (partition, offset):
                keys.append(key)
        return keys

    def of_partition(self, partition: int) -> list[str]:
        """Return the keys of tensors in a partition."""
        return [key for tensors in self.cameras.get(partition, {}).values() for key in tensors.keys]

    def of_camera(self, camera: str) -> list[str]:
        """Return the keys of a camera's tensors."""
        partitions = self._partitions.get(camera, ())
        return [key for partition in partitions for key in self.cameras[partition][camera].keys]
