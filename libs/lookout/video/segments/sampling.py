"""The sampling grid in stream time and the choice of one frame per grid point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from lookout.video.segments.timeline import BACKWARD_US

T = TypeVar("T")


class Tail(StrEnum):
    """What becomes of the grid cell in which a segment ends.

    KEEP fills it with this segment's frames. LEAVE leaves it to the next segment, whose first frame is a
    keyframe nearer than half a step: right for live streams cut at keyframes."""

    KEEP = "keep"
    LEAVE = "leave"


#: by how much segments may overlap; a larger step back is a jump of the clock
EARLY_US: Final = 5_000_000
#: by how much a segment may begin late, where no window says it
LATE_US: Final = 60_000_000
#: by how much that may be another time than the one by the clock in the bytes
# Ahead: less than `lookout publish` takes to start again. Behind: a producer that reads its clock late for
# one segment moves what was heard on, and the segments after that one then look too early.
_AHEAD_US, _BEHIND_US = 500_000, 10_000_000


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a camera's stream should go on.

    epoch_us: container time of the epoch's start; next_us: container time at which the next segment should
    begin. If it begins no more than early_us before and late_us after that, the epoch continues and stream
    time is container time minus epoch_us; otherwise the clock jumped and a new epoch begins.
    """

    epoch_us: int
    next_us: int
    early_us: int = EARLY_US
    late_us: int = LATE_US

    def holds(self, first_us: int) -> bool:
        """True if a segment that begins at `first_us` continues the epoch."""
        return -self.early_us <= first_us - self.next_us <= self.late_us


def is_other_footage(overlap_us: int, ahead_us: int, *, continued: bool) -> bool:
    """Whether a segment that begins before the end of the one before it is no part of the same footage.

    A camera that is connected again within seconds counts from zero, as does a clip after another: their
    time stamps are those of footage that was read before, or lie before it. When they were taken tells them
    apart from segments that come late or twice. Clocks are not exact: half of a short overlap decides.

    Args:
        overlap_us: By how much it begins early, by the clock in the bytes.
        ahead_us: How much later it was taken than when that clock showed its time.
        continued: Whether it continues the epoch, by the clock in the bytes.
    """
    if continued and overlap_us < BACKWARD_US:  # as much as a clock may tremble
        return False
    return ahead_us < -_BEHIND_US or ahead_us > min(abs(overlap_us) // 2, _AHEAD_US)


@dataclass(frozen=True, slots=True)
class SamplingGrid:
    """Grid points at origin_us + n * step_us of stream time, n >= 0."""

    step_us: int = 500_000
    origin_us: int = 0

    def __post_init__(self) -> None:
        if self.step_us <= 0:
            raise ValueError(f"the sampling step must be positive, not {self.step_us} us")

    def slot(self, stream_us: int) -> int:
        """The grid point nearest to a time; a time half way between two belongs to the later one."""
        return (stream_us - self.origin_us + self.step_us // 2) // self.step_us

    def time(self, slot: int) -> int:
        """Stream time of a grid point, in microseconds."""
        return self.origin_us + slot * self.step_us

    def pick(
        self,
        times: Sequence[int],
        keys: Sequence[bool] | None = None,
        corrupt: Sequence[bool] | None = None,
        first_slot: int = 0,
        end_us: int | None = None,
    ) -> list[tuple[int, int]]:
        """(slot, frame index) per filled grid point, for frames with rising stream times.

        A frame serves its nearest grid point only. Among those of one grid point an undamaged frame wins
        over a damaged one, then an I-frame over others, then the nearest, then the earlier. With `end_us`
        the cell that holds it, and later ones, stay empty."""
        selector: Selector[int] = Selector(self, first_slot)
        decisions: list[tuple[int, int | None]] = []
        for i, t in enumerate(times):
            intra = bool(keys[i]) if keys is not None else False
            bad = bool(corrupt[i]) if corrupt is not None else False
            decisions += selector.offer(i, t, intra, bad)
        decisions += selector.finish(end_us)
        return [(slot, i) for i, slot in decisions if slot is not None]


@dataclass(slots=True)
class Selector(Generic[T]):
    """`SamplingGrid.pick` one frame at a time, holding at most one cell of frames.

    Every item offered comes back exactly once and in order, with the grid point it was chosen for or None.
    """

    grid: SamplingGrid
    first_slot: int = 0
    _slot: int | None = None
    _rank: tuple[bool, bool, int] = (True, True, 0)
    _cell: list[T] = field(default_factory=list)  # the candidate, then what was offered after it

    @property
    def candidate(self) -> T | None:
        """What the open grid point would get if it closed now."""
        return self._cell[0] if self._cell else None

    def offer(self, item: T, stream_us: int, intra: bool, corrupt: bool) -> list[tuple[T, int | None]]:
        """Take the next frame; returns the items whose fate is now known."""
        slot = self.grid.slot(stream_us)
        if self._slot is not None and slot < self._slot:
            raise ValueError(f"stream time went back to {stream_us} us, before grid point {self._slot}")
        decisions = self.finish(None) if slot != self._slot else []
        if slot < self.first_slot:
            return [*decisions, (item, None)]
        # Compared from left to right: `False` comes before `True`.
        rank = (corrupt, not intra, abs(stream_us - self.grid.time(slot)))
        if self._slot is None or rank < self._rank:
            decisions += [(passed, None) for passed in self._cell]
            self._slot, self._rank, self._cell = slot, rank, [item]
        else:
            self._cell.append(item)
        return decisions

    def finish(self, end_us: int | None) -> list[tuple[T, int | None]]:
        """Close the open cell; with `end_us` nothing is chosen if the stream ends inside that cell."""
        slot, cell = self._slot, self._cell
        self._slot, self._cell = None, []
        if slot is not None and end_us is not None and slot >= self.grid.slot(end_us):
            slot = None
        return [(item, slot if i == 0 else None) for i, item in enumerate(cell)]


@dataclass(frozen=True, slots=True)
class Pick:
    """A frame to sample: presentation index, grid point, time since the file's first frame."""

    index: int
    slot: int
    time_us: int
    pts: int
