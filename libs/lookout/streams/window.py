"""Decides which blocks form a window, and whether the window is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: maximum share of damaged samples with which a window is still asked: up to this share, no answer changed in
#: tests that dropped packets of real clips
MAX_DAMAGE: Final = 0.1


class NoAnswerKind(StrEnum):
    """The outcome of a window without an answer."""

    GAP = "gap"  # there was no picture
    SKIPPED = "skipped"  # not asked on purpose
    DEGRADED = "degraded"  # the window could not be answered
    GATED = "gated"  # the question's gate did not hold


class Cause(StrEnum):
    """Why a window has no answer. `lookout.v1.Cause` has a value with the name of each member."""

    NO_FRAMES = "no-frames"
    SILENCE = "silence"
    CLOCK_JUMP = "clock-jump"
    CLOCK_RESET = "clock-reset"
    CONFIGURATION = "configuration"
    LATE = "late"
    TWO_CAMERAS = "two-cameras"
    QUOTA = "quota"
    PIXELS_LOST = "pixels-lost"
    OVERLOAD = "overload"
    OTHER_MODEL = "other-model"
    OTHER_SAMPLING = "other-sampling"
    MIXED_GRIDS = "mixed-grids"
    DAMAGED = "damaged"
    TOKENS_LOST = "tokens-lost"
    REJECTED = "rejected"
    ENGINE = "engine"
    RETENTION = "retention"
    ERASED = "erased"
    MOVED = "moved"
    ENDED = "ended"
    GATE = "gate"

    @property
    def kind(self) -> NoAnswerKind:
        """The outcome of a window that has no answer for this cause."""
        if self is Cause.GATE:
            return NoAnswerKind.GATED
        if self in _SKIPPED:
            return NoAnswerKind.SKIPPED
        return NoAnswerKind.DEGRADED if self in _DEGRADED else NoAnswerKind.GAP


_SKIPPED: Final = frozenset({Cause.QUOTA, Cause.OVERLOAD, Cause.ERASED})
_DEGRADED: Final = frozenset(
    {
        Cause.OTHER_MODEL,
        Cause.OTHER_SAMPLING,
        Cause.MIXED_GRIDS,
        Cause.DAMAGED,
        Cause.TOKENS_LOST,
        Cause.REJECTED,
        Cause.ENGINE,
    }
)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a window has no answer: a cause for programs, a reason for people."""

    cause: Cause
    reason: str

    @property
    def kind(self) -> NoAnswerKind:
        """The window's outcome."""
        return self.cause.kind


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """Facts about a block that decide whether a window with it is asked.

    Attributes:
        index: Index of the block in its stream.
        samples: Grid points of the block.
        frames: Number of its frames.
        damaged: Number of damaged frames among `frames`.
        grid: Merge groups of a frame, (rows, columns); None if the block has no frames.
        missing: Why the block has no frames; None: the block has frames, or the cause is unknown.
        foreign: Why the block does not fit this configuration, so that windows do not use its frames; None:
            the block fits.
        lost: Whether the block's tokens are lost permanently.
    """

    index: int
    samples: int
    frames: int
    damaged: int = 0
    grid: tuple[int, int] | None = None
    missing: NoAnswer | None = None
    foreign: NoAnswer | None = None
    lost: bool = False

    @property
    def usable(self) -> bool:
        """Whether windows use the block's frames."""
        return self.frames > 0 and not self.lost and self.foreign is None


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Decides which blocks form a window, and whether the window is asked.

    Window k of a stream ends with block k and has at most `blocks` consecutive blocks. It has fewer at the
    beginning of a stream and after a missing index. Windows include blocks without frames, but a window that
    ends with one has no answer.

    Attributes:
        blocks: Number of blocks of a full window.
        max_damage: Maximum share of damaged samples with which a window is asked, 0 to 1.
    """

    blocks: int
    max_damage: float = MAX_DAMAGE

    def length(self, indices: Sequence[int]) -> int:
        """Return how many of the newest blocks form the window.

        Args:
            indices: Indices of the available blocks, ascending; the window ends with the last.
        """
        count = 1
        # Backwards from the newest block, up to the first missing index.
        while count < min(self.blocks, len(indices)) and indices[-count - 1] == indices[-count] - 1:
            count += 1
        return count

    def refusal(self, window: Sequence[BlockFacts]) -> NoAnswer | None:
        """Return why the window is not asked; None if it is.

        Args:
            window: The window's blocks, oldest first.
        """
        newest = window[-1]
        # If the newest block has no frames, the window does not show the present, whatever its earlier blocks
        # show.
        if not newest.frames:
            return newest.missing or NoAnswer(Cause.NO_FRAMES, "no frames")
        if newest.foreign is not None:
            return newest.foreign
        grids = list(dict.fromkeys(block.grid for block in window if block.usable and block.grid is not None))
        if len(grids) > 1:
            sizes = " and ".join(f"{rows}x{cols}" for rows, cols in grids)
            return NoAnswer(
                Cause.MIXED_GRIDS,
                f"the window has blocks of {sizes} merge groups: all instances of prune-encode need the "
                "same LOOKOUT_INPUT_WIDTH and LOOKOUT_INPUT_HEIGHT",
            )
        damage = self.damage(window)
        if damage > self.max_damage:
            return NoAnswer(
                Cause.DAMAGED,
                f"{damage:.0%} of the window's samples are damaged or missing, more than LOOKOUT_MAX_DAMAGE "
                f"({self.max_damage:.0%}) allows: packets of the stream are being lost",
            )
        return None

    def coverage(self, window: Sequence[BlockFacts]) -> float:
        """Return the share of the window's samples that were seen undamaged, 0 to 1."""
        intact = sum(block.frames - block.damaged for block in window if block.usable)
        return min(1.0, intact / max(1, sum(block.samples for block in window)))

    def damage(self, window: Sequence[BlockFacts]) -> float:
        """Return the share of the window's samples that are damaged or were lost with damage, 0 to 1.

        Missing samples count only in blocks that also have damaged frames. In other blocks, the camera may
        simply send fewer frames than are sampled.
        """
        damaged = sum(
            block.damaged + max(0, block.samples - block.frames)
            for block in window
            if block.usable and block.damaged
        )
        return damaged / max(1, sum(block.samples for block in window))
