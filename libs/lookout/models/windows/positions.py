"""Computes the position ids of a window's rows. There is one class for each way in which models number
rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lookout.models.windows.types import EncodedFrame, Rows, WindowError


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which rows of a window are text and which are visual, in prompt order.

    Attributes:
        prefix: Number of rows of the prefix.
        before: Number of text rows before the tokens of each frame, int64 [frames].
        counts: Number of kept tokens of each frame, int64 [frames].
        after: Number of text rows after the tokens of each frame, int64 [frames].
    """

    prefix: int
    before: Rows
    counts: Rows
    after: Rows

    @property
    def starts(self) -> Rows:
        """First row of every frame, int64 [frames]."""
        sizes: Rows = self.before + self.counts + self.after
        starts: Rows = np.cumsum(sizes) - sizes + self.prefix
        return starts

    @property
    def visual(self) -> Rows:
        """Numbers of all visual rows, int64 [tokens]."""
        return np.repeat(self.starts + self.before, self.counts) + self.inside

    @property
    def inside(self) -> Rows:
        """For every visual row, its number among the visual rows of its frame, int64 [tokens]."""
        return _inside(self.counts)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.prefix + int(self.before.sum() + self.counts.sum() + self.after.sum())


@dataclass(frozen=True, slots=True)
class PositionRule(ABC):
    """How a model numbers the rows of a window.

    The rules are those of `get_rope_index` in transformers. Text after a frame begins at the largest position
    of any axis plus 1, as in vLLM. The full grid counts, so that pruning does not shift positions.

    Attributes:
        limit: The first position beyond the model's range.
    """

    limit: int
    axes: ClassVar[int]
    """Number of position axes, which is the number of rows of `WindowPlan.positions`."""

    def place(
        self,
        rows: RowLayout,
        frames: Sequence[EncodedFrame],
        *,
        compact: bool = False,
        origin_us: int | None = None,
        first: int = 0,
    ) -> tuple[Rows, int]:
        """Return positions int64 [axes, rows] of a window, and the position of the first text row after it.

        Args:
            rows: Which rows are text and which are visual.
            frames: The frames that the rows show.
            compact: Whether to count only kept tokens; only for rules with one axis.
            origin_us: The sampling point from which time counts, in microseconds, if the frames continue a
                video; None: the first frame's sampling point.
            first: Number of earlier frames of the video.

        Raises:
            WindowError: The rule cannot number such rows.
        """
        if compact and self.axes > 1:
            raise WindowError(
                "compact positions need a model with one position axis, but this model numbers grids"
            )
        positions = np.empty((self.axes, rows.rows), dtype=np.int64)
        positions[:, : rows.prefix] = np.arange(rows.prefix)
        return positions, self._place(_Numbering(positions, rows, frames, compact, origin_us, first))

    @abstractmethod
    def _place(self, window: _Numbering) -> int:
        """Set the positions of the rows after the prefix; return the position after the window."""

    def continued(self, positions: Rows, question: int, prefix: int, previous: int) -> tuple[Rows, int]:
        """Return the positions of a later group of a recording, shifted to follow the previous groups, and
        the first position after the group.

        Args:
            positions: The group's positions from `place`, which numbered the group alone, int64 [axes, rows].
            question: The position after the group, from `place`.
            prefix: Number of rows of the prefix, which precedes all groups.
            previous: The position after the previous groups.
        """
        return positions + previous, question + previous

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """Return the number of positions that one frame spans on each axis, int64 [axes].

        Args:
            keep: (rows, columns) of the frame's grid.
            stop: The position after the frame.
        """
        return np.full(self.axes, stop, dtype=np.int64)

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """Return the distance in positions from a frame with this `shape` to the frame `frame_us`
        microseconds later, int64 [axes]."""
        return shape

    @abstractmethod
    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """Return the mean number of positions per frame.

        Args:
            rows: Number of prompt rows of one temporal patch.
            tokens: (rows, columns) of the grid of one temporal patch.
            temporal: Frames of a temporal patch.
            fps: Frames per second.
        """


@dataclass(frozen=True, slots=True)
class _Numbering:
    """A window whose rows are being numbered. The results are written to `positions`, int64 [axes, rows]; the
    other fields are arguments of `place`."""

    positions: Rows
    rows: RowLayout
    frames: Sequence[EncodedFrame]
    compact: bool
    origin_us: int | None
    first: int

    @property
    def cells(self) -> Rows:
        """For every visual row, the index of its group in its frame's grid, int64 [tokens]."""
        parts = [frame.kept for frame in self.frames]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def per_frame(self, extent: Callable[[EncodedFrame], int]) -> Rows:
        """Return what `extent` returns for every frame, int64 [frames]."""
        return np.array([extent(frame) for frame in self.frames], np.int64)

    def grid(self, times: Rows) -> Rows:
        """Return (t, row, column) of every visual row, int64 [3, tokens]; `times` is int64 [frames]."""
        cells = self.cells
        cols = np.repeat(self.per_frame(lambda frame: frame.keep.shape[1]), self.rows.counts)
        return np.stack([np.repeat(times, self.rows.counts), cells // cols, cells % cols])

    def frame_by_frame(self, local: Rows, extents: Rows) -> int:
        """Set the positions of all frames, one frame after the other.

        Args:
            local: Position of every visual row relative to its frame, int64 [axes, tokens] or [tokens].
            extents: Number of positions that the visual rows of each frame take, int64 [frames].

        Returns:
            The position after the last frame.
        """
        rows, positions = self.rows, self.positions
        before, after, starts = rows.before, rows.after, rows.starts
        ends = rows.prefix + np.cumsum(before + extents + after)
        corners = ends - after - extents
        opening, closing = _inside(before), _inside(after)
        positions[:, np.repeat(starts, before) + opening] = np.repeat(corners - before, before) + opening
        positions[:, rows.visual] = np.repeat(corners, rows.counts) + local
        closing_rows = np.repeat(starts + before + rows.counts, after) + closing
        positions[:, closing_rows] = np.repeat(ends - after, after) + closing
        return int(ends[-1]) if len(ends) else rows.prefix


class RunningPositions(PositionRule):
    """One axis: every row takes one position. Dropped tokens take positions too, unless `compact` is set."""

    axes = 1

    def _place(self, window: _Numbering) -> int:
        if window.compact:
            return window.frame_by_frame(window.rows.inside, window.rows.counts)
        return window.frame_by_frame(window.cells, window.per_frame(lambda frame: frame.keep.size))

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """One position per row."""
        return rows / temporal


class FramePositions(PositionRule):
    """Three axes (t, row, column): every frame is a separate grid after its label, with a constant t."""

    axes = 3

    def _place(self, window: _Numbering) -> int:
        still = np.zeros(len(window.frames), np.int64)
        return window.frame_by_frame(
            window.grid(still), window.per_frame(lambda frame: max(frame.keep.shape))
        )

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """Text rows take one position each, and a grid takes as many as its longer side."""
        return (rows - tokens[0] * tokens[1] + max(tokens)) / temporal


class GridPositions(PositionRule):
    """Three axes (t, row, column): all frames form one grid. Subclasses define its time axis."""

    axes = 3

    @abstractmethod
    def _times(self, window: _Numbering) -> Rows:
        """Return the position of every frame on the time axis, counted from the video's first frame, int64
        [frames]."""

    def _place(self, window: _Numbering) -> int:
        rows, frames = window.rows, window.frames
        if rows.before.any() or rows.after.any():
            raise WindowError(
                "this model numbers all frames as one video, so labels cannot come between them"
            )
        if not frames:
            return rows.prefix
        times = self._times(window)
        window.positions[:, rows.visual] = rows.prefix + window.grid(times)
        # Text after the video begins after the largest position of any axis.
        extents: list[int] = [int(times.max()) + 1, *(max(frame.keep.shape) for frame in frames)]
        return rows.prefix + max(extents)

    def continued(self, positions: Rows, question: int, prefix: int, previous: int) -> tuple[Rows, int]:
        """See `PositionRule.continued`. All groups count from the same origin, so only the prefix shifts
        them."""
        return positions + prefix, max(previous, question + prefix)

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """See `PositionRule.shape`: one step in time, and the rows and columns of the grid."""
        return np.array([1, *keep], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class VideoPositions(GridPositions):
    """One grid for all frames; t counts ticks of `ticks_per_second` from the window's first frame."""

    ticks_per_second: float = 1.0

    def _times(self, window: _Numbering) -> Rows:
        origin = window.frames[0].slot_us if window.origin_us is None else window.origin_us
        seconds = np.array([frame.slot_us - origin for frame in window.frames]) / 1e6
        # Sampling points are rounded to microseconds. A point that is exactly at a tick must not be rounded
        # down to the tick before.
        ticks: Rows = np.floor(seconds * self.ticks_per_second + 1e-4).astype(np.int64)
        return ticks

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """See `PositionRule.ticks`: the next frame differs only in time, by at least one tick."""
        return np.array([max(1, round(self.ticks_per_second * frame_us / 1e6)), 0, 0], dtype=np.int64)

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """See `PositionRule.per_frame`: the number of ticks per frame, never 0."""
        # Callers divide by this number.
        return max(self.ticks_per_second / fps, 1e-3)


class NumberedPositions(GridPositions):
    """One grid for all frames; t is the frame's number, whatever its time."""

    def _times(self, window: _Numbering) -> Rows:
        numbers: Rows = window.first + np.arange(len(window.frames))
        return numbers

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """See `PositionRule.ticks`: the next frame has the next number."""
        return np.array([1, 0, 0], dtype=np.int64)

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """See `PositionRule.per_frame`: one position for each temporal patch."""
        return 1 / temporal


def _inside(counts: Rows) -> Rows:
    """Return the numbers 0, 1, ... of the rows within each of consecutive groups, which have `counts`
    rows."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
