"""The sampling grid in stream time and the choice of one frame per grid point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from lookout.video.segments.timeline import BACKWARD_US

T = TypeVar("T")


class Tail(StrEnum):
    """What happens to the grid cell in which a segment ends.

    KEEP fills it with this segment's frames. LEAVE leaves it to the next segment, whose first frame is a
    keyframe less than half a step away; this suits live streams cut at keyframes.
    """

    KEEP = "keep"
    LEAVE = "leave"


#: largest overlap of segments; a larger step back is a jump of the clock
EARLY_US: Final = 5_000_000
#: by how much a segment may begin late, unless a window defines it
LATE_US: Final = 60_000_000
# How far recording time may deviate from the clock in the bytes, ahead and behind. Ahead: less than `lookout
# publish` takes to restart. Behind: a producer that reads its clock late for one segment moves the reference
# forward, and later segments then seem too early.
_AHEAD_US, _BEHIND_US = 500_000, 10_000_000


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a camera's stream is expected to continue.

    epoch_us: container time of the epoch's start; next_us: container time at which the next segment should
    begin. If the segment begins no more than early_us before and late_us after next_us, the epoch continues,
    and stream time is container time minus epoch_us. Otherwise the clock jumped and a new epoch begins.
    """

    epoch_us: int
    next_us: int
    early_us: int = EARLY_US
    late_us: int = LATE_US

    def holds(self, first_us: int) -> bool:
        """Whether a segment that begins at `first_us` continues the epoch."""
        return -self.early_us <= first_us - self.next_us <= self.late_us


def is_other_footage(overlap_us: int, ahead_us: int, *, continued: bool) -> bool:
    """Whether a segment that begins before the end of the previous one belongs to different footage.

    If a camera reconnects within seconds, or one clip follows another, time stamps begin at zero again, so
    they repeat or precede those of earlier footage. Recording times distinguish such footage from segments
    that arrive late or twice: it was recorded later, or much earlier, than the clock in the bytes says.
    Clocks are inexact, so half of a short overlap is enough.

    Args:
        overlap_us: By how much the segment begins early, according to the clock in the bytes.
        ahead_us: Recording time minus the time that the clock in the bytes gives for it; negative if it is
            earlier.
        continued: Whether the segment continues the epoch, according to the clock in the bytes.
    """
    if continued and overlap_us < BACKWARD_US:  # within clock jitter
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
        """Return the grid point nearest to a time; a time half way between two belongs to the later one."""
        return (stream_us - self.origin_us + self.step_us // 2) // self.step_us

    def time(self, slot: int) -> int:
        """Return the stream time of a grid point, in microseconds."""
        return self.origin_us + slot * self.step_us

    def pick(
        self,
        times: Sequence[int],
        keys: Sequence[bool] | None = None,
        corrupt: Sequence[bool] | None = None,
        first_slot: int = 0,
        end_us: int | None = None,
    ) -> list[tuple[int, int]]:
        """Return (slot, frame index) per filled grid point, for frames with rising stream times.

        A frame can fill only its nearest grid point. Among the frames of one grid point an undamaged frame
        wins over a damaged one, then an I-frame over others, then the nearest, then the earlier. With
        `end_us`, the cell that contains it and all later cells stay empty.
        """
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
    """`SamplingGrid.pick`, one frame at a time; it keeps at most the frames of one cell.

    Every offered item is returned exactly once, in order, with the grid point for which it was chosen or
    None.
    """

    grid: SamplingGrid
    first_slot: int = 0
    _slot: int | None = None
    _rank: tuple[bool, bool, int] = (True, True, 0)
    _cell: list[T] = field(default_factory=list)  # the candidate, then what was offered after it

    @property
    def candidate(self) -> T | None:
        """The item that would be chosen if the open cell were closed now."""
        return self._cell[0] if self._cell else None

    def offer(self, item: T, stream_us: int, intra: bool, corrupt: bool) -> list[tuple[T, int | None]]:
        """Add the next frame; return the items that are now decided."""
        slot = self.grid.slot(stream_us)
        if self._slot is not None and slot < self._slot:
            raise ValueError(f"stream time went back to {stream_us} us, before grid point {self._slot}")
        decisions = self.finish(None) if slot != self._slot else []
        if slot < self.first_slot:
            return [*decisions, (item, None)]
        # Compared from left to right, `False` before `True`; the lowest rank wins.
        rank = (corrupt, not intra, abs(stream_us - self.grid.time(slot)))
        if self._slot is None or rank < self._rank:
            decisions += [(passed, None) for passed in self._cell]
            self._slot, self._rank, self._cell = slot, rank, [item]
        else:
            self._cell.append(item)
        return decisions

    def finish(self, end_us: int | None) -> list[tuple[T, int | None]]:
        """Close the open cell and return its items. If the stream ends inside that cell (`end_us`), no item
        is chosen."""
        slot, cell = self._slot, self._cell
        self._slot, self._cell = None, []
        if slot is not None and end_us is not None and slot >= self.grid.slot(end_us):
            slot = None
        return [(item, slot if i == 0 else None) for i, item in enumerate(cell)]


@dataclass(frozen=True, slots=True)
class Pick:
    """A frame to sample: presentation index, grid point, time since the recording's first frame, pts."""

    index: int
    slot: int
    time_us: int
    pts: int
