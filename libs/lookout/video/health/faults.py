"""Detects the faults that a segment shows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lookout.video.health.looks import F32, Looks
from lookout.video.health.usual import Match, Usual


class CameraFault(StrEnum):
    """A kind of camera fault.

    Members are ordered by root cause: a covered lens, for example, also lowers the bit rate.
    """

    OFFLINE = "offline"
    DAMAGED = "damaged"
    DARK = "dark"
    COVERED = "covered"
    BLURRED = "blurred"
    MOVED = "moved"
    FROZEN = "frozen"
    LOOPED = "looped"
    RATE = "rate"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Observation:
    """Facts about one segment, gathered while it was decoded.

    Attributes:
        at_ms: Its begin on the camera's clock, Unix milliseconds.
        seconds: Its length.
        planes: The segment's samples, reduced to planes.
        frames: Number of pictures.
        size: Bytes.
        damaged: Share of the decoded pictures that lost bytes, 0 to 1.
        ahead_s: Seconds by which the camera's clock is ahead of Kafka's; 0 if the camera reports no time.
        jumped: Whether the camera's clock jumped or restarted just before the segment.
        refused: Whether nothing could be decoded, so that there are no samples.
    """

    at_ms: int
    seconds: float
    planes: Looks
    frames: int = 0
    size: int = 0
    damaged: float = 0.0
    ahead_s: float = 0.0
    jumped: bool = False
    refused: bool = False

    @property
    def end_ms(self) -> int:
        """End of the segment, Unix milliseconds."""
        return self.at_ms + round(self.seconds * 1000)

    @property
    def hour(self) -> int:
        """Hour in which the segment begins, counted since 1970."""
        return max(0, self.at_ms // 3_600_000)


@dataclass(frozen=True, slots=True)
class Levels:
    """How far a camera's ordinary segments deviate from its reference pictures, as running extremes.

    Attributes:
        similarity: Low end of `Match.similarity`.
        detail: Low end of `Match.detail`.
        lost: High end of `Match.lost`.
    """

    similarity: float = 0.9
    detail: float = 0.9
    lost: float = 0.05

    def learned(self, match: Match) -> Levels:
        """Return the levels updated with an ordinary segment."""
        return Levels(
            _low(self.similarity, match.similarity),
            _low(self.detail, match.detail),
            -_low(-self.lost, -match.lost),
        )


def _low(level: float, value: float) -> float:
    """Return the updated low end of values, which falls fast and rises slowly."""
    return level + (0.2 if value < level else 0.005) * (value - level)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds beyond which a picture is at fault.

    Attributes:
        similarity: Below it, the view has moved.
        detail: Below it, in the same view, the picture is blurred.
        lost: At this share of cells that lost their detail, or above it, the lens is covered.
        learned: Whether the thresholds come from the camera's levels; if not, the values above are used.
    """

    similarity: float = 0.5
    detail: float = 0.5
    lost: float = 0.4
    learned: bool = False

    def of(self, levels: Levels) -> Thresholds:
        """Return the thresholds for a camera with these levels."""
        if not self.learned:
            return self
        return Thresholds(
            similarity=_between(levels.similarity - 0.25, 0.2, 0.5),
            detail=_between(0.78 * levels.detail, 0.25, 0.75),
            lost=_between(levels.lost + 0.25, 0.3, 0.7),
        )


def _between(value: float, least: float, highest: float) -> float:
    return min(highest, max(least, value))


FIXED: Final = Thresholds()
LEARNED: Final = Thresholds(learned=True)

#: brightness and its standard deviation over the picture, in grey levels, below which a picture is black
_BLACK, _BLACK_SPREAD = 26.0, 12.0
#: standard deviation of brightness below which nothing can be seen
_BLANK = 1.0
#: mean brightness from which on an hour counts as lit
_LIT = 40.0
#: minimum share of damaged pictures with which a segment has a fault
_DAMAGED = 0.3
#: maximum number of seconds by which a clock may be ahead
_AHEAD_S = 60.0


def picture_fault(
    luma: F32, detail: F32, usual: Usual, thresholds: Thresholds
) -> tuple[CameraFault | None, tuple[int, Match] | None]:
    """Return the fault that a view shows (None: no fault), and the number and match of the reference picture
    most like the view (None: there is none).

    No fault is reported at an hour at which the camera has not been seen yet. Darkness is a fault only at an
    hour that was lit on another day, so the first evening is not a fault.

    Args:
        luma: See `Looks.middle`.
        detail: See `Looks.middle`.
        usual: What the camera usually shows.
        thresholds: The camera's thresholds.
    """
    candidate = usual.best(luma, detail, usual.of_day)
    if candidate is None or not usual.known(usual.of_day):
        return None, None
    _, match = candidate
    if luma.mean() < _BLACK and luma.std() < _BLACK_SPREAD:
        dark = usual.days(usual.of_day) > 1 and usual.darkest(usual.of_day) >= _LIT
        return (CameraFault.DARK if dark else None), None
    blank = luma.std() < _BLANK
    same_view = match.coarse >= max(0.7, thresholds.similarity)
    if same_view and match.detail < thresholds.detail and not blank:
        return CameraFault.BLURRED, candidate
    if match.lost >= thresholds.lost:
        return CameraFault.COVERED, candidate
    return (CameraFault.MOVED if match.similarity < thresholds.similarity else None), candidate


def stream_faults(observation: Observation) -> set[CameraFault]:
    """Return the faults that a segment shows, apart from those in its pictures."""
    faults = set()
    if observation.refused or observation.damaged >= _DAMAGED:
        faults.add(CameraFault.DAMAGED)
    if observation.ahead_s > _AHEAD_S:
        faults.add(CameraFault.CLOCK)
    return faults


def is_blank(luma: F32) -> bool:
    """Whether a view has no structure at all."""
    return float(luma.std()) < _BLANK
