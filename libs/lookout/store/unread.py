"""What waits to be read: pins, and the pressure that pauses producing."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Gauge", "Pressure", "Unread", "Waiting"]

_EASE = 0.75


@dataclass(frozen=True, slots=True)
class Unread:
    """Pins a tensor until its consumer has read it: the partition it travels in, and its stream time in
    seconds."""

    partition: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """One unread tensor."""

    partition: int
    camera: str
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """What waits to be read, and which partitions should not produce more for now."""

    unread_bytes: int
    unread_seconds: float
    paused: frozenset[int]


@dataclass(slots=True)
class Gauge:
    """Decides who pauses: partitions with at least their share of too many unread bytes, and those with a
    camera whose unread stream time exceeds its limit. They resume at three quarters, so that pausing does
    not flutter."""

    unread_bytes: int
    unread_seconds: float
    paused: set[int] = field(default_factory=set)

    def read(self, waiting: Iterable[Waiting]) -> Pressure:
        lengths: defaultdict[int, int] = defaultdict(int)
        seconds: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for item in waiting:
            lengths[item.partition] += item.length
            seconds[item.partition][item.camera] += item.seconds
        total = sum(lengths.values())
        longest = {partition: max(cameras.values()) for partition, cameras in seconds.items()}
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
