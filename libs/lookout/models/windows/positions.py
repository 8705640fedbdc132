"""Position ids of a window's rows, counted from its start: one class for each way of numbering."""

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

    `prefix` leading rows; then per frame `before` text rows, `counts` kept tokens and `after` text rows, each
    int64 [frames].
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
        """All visual rows, int64 [tokens]."""
        return np.repeat(self.starts + self.before, self.counts) + self.inside

    @property
    def inside(self) -> Rows:
        """The number of every visual row within its frame, int64 [tokens]."""
        return _inside(self.counts)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.prefix + int(self.before.sum() + self.counts.sum() + self.after.sum())


@dataclass(frozen=True, slots=True)
class PositionRule(ABC):
    """How a model numbers the rows of a window. `limit` is the first position beyond its range.

    Sources: `get_rope_index` of transformers' models. Text after a frame starts at the maximum over all axes
    + 1 (vLLM's rule), counted on the full grid, so that pruning shifts no position.
    """

    limit: int
    axes: ClassVar[int]
    """Rows of a plan's `positions`."""

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
            frames: The frames that they show.
            compact: Count kept tokens only; for rules of one axis.
            origin_us: The sampling point from which time counts, if the frames continue a video; None: the
                first frame's.
            first: How many frames of the video come before them.

        Raises:
            WindowError: The rule cannot number such rows.
        """
        if compact and self.axes > 1:
            raise WindowError("compact positions are for models with one axis; this one numbers grids")
        positions = np.empty((self.axes, rows.rows), dtype=np.int64)
        positions[:, : rows.prefix] = np.arange(rows.prefix)
        return positions, self._place(_Numbering(positions, rows, frames, compact, origin_us, first))

    @abstractmethod
    def _place(self, window: _Numbering) -> int:
        """Number the rows after the prefix; returns the position after the window."""

    def continued(self, positions: Rows, question: int, prefix: int, previous: int) -> tuple[Rows, int]:
        """Shift a further group of a recording, placed on its own, to where it follows the groups before it.

        Returns its positions and the first position after it. `previous` is the position after the groups
        before, `prefix` the number of rows in front of all groups.
        """
        return positions + previous, question + previous

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """Return the positions that one frame spans, int64 [axes]; `keep` is its grid, `stop` the position
        after it."""
        return np.full(self.axes, stop, dtype=np.int64)

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """Return the distance from one frame of this shape to the next, `frame_us` later, int64 [axes]."""
        return shape

    @abstractmethod
    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """Return the mean number of positions that a frame takes. Each `temporal` frames take `rows` prompt
        rows and a grid of `tokens` (rows, columns); `fps` is the number of frames a second."""


@dataclass(frozen=True, slots=True)
class _Numbering:
    """A window whose rows are being numbered: results go into `positions` int64 [axes, rows]; the rest as in
    `place`."""

    positions: Rows
    rows: RowLayout
    frames: Sequence[EncodedFrame]
    compact: bool
    origin_us: int | None
    first: int

    @property
    def cells(self) -> Rows:
        """The group of the grid that every visual row shows, int64 [tokens]."""
        parts = [frame.kept for frame in self.frames]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def per_frame(self, extent: Callable[[EncodedFrame], int]) -> Rows:
        """Compute `extent` of every frame, int64 [frames]."""
        return np.array([extent(frame) for frame in self.frames], np.int64)

    def grid(self, times: Rows) -> Rows:
        """Return (t, row, column) of every visual row, int64 [3, tokens]; `times` is int64 [frames]."""
        cells, cols = (
            self.cells,
            np.repeat(self.per_frame(lambda frame: frame.keep.shape[1]), self.rows.counts),
        )
        return np.stack([np.repeat(times, self.rows.counts), cells // cols, cells % cols])

    def frame_by_frame(self, local: Rows, extents: Rows) -> int:
        """Number frames one after the other.

        Args:
            local: Position of every visual row in its frame, int64 [axes, tokens] or [tokens].
            extents: Positions that the visual rows of a frame take, int64 [frames].

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
        behind = np.repeat(starts + before + rows.counts, after) + closing
        positions[:, behind] = np.repeat(ends - after, after) + closing
        return int(ends[-1]) if len(ends) else rows.prefix


class RunningPositions(PositionRule):
    """One axis: every row comes one after the row before it, with dropped tokens counted."""

    axes = 1

    def _place(self, window: _Numbering) -> int:
        if window.compact:
            return window.frame_by_frame(window.rows.inside, window.rows.counts)
        return window.frame_by_frame(window.cells, window.per_frame(lambda frame: frame.keep.size))

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """One position per row."""
        return rows / temporal


class FramePositions(PositionRule):
    """Three axes: every frame is a grid of its own after its label, and t is constant in it."""

    axes = 3

    def _place(self, window: _Numbering) -> int:
        still = np.zeros(len(window.frames), np.int64)
        return window.frame_by_frame(
            window.grid(still), window.per_frame(lambda frame: max(frame.keep.shape))
        )

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """The text rows, and the longer side of the grid."""
        return (rows - tokens[0] * tokens[1] + max(tokens)) / temporal


class GridPositions(PositionRule):
    """Three axes: all frames are one grid, whose time axis the subclass counts."""

    axes = 3

    @abstractmethod
    def _times(self, window: _Numbering) -> Rows:
        """Return every frame's place on the time axis, counted from the first of the video, int64
        [frames]."""

    def _place(self, window: _Numbering) -> int:
        rows, frames = window.rows, window.frames
        if rows.before.any() or rows.after.any():
            raise WindowError("this model numbers all frames as one video: no labels between frames")
        if not frames:
            return rows.prefix
        times = self._times(window)
        window.positions[:, rows.visual] = rows.prefix + window.grid(times)
        # Text after the video begins after the largest position of any axis.
        extents: list[int] = [int(times.max()) + 1, *(max(frame.keep.shape) for frame in frames)]
        return rows.prefix + max(extents)

    def continued(self, positions: Rows, question: int, prefix: int, previous: int) -> tuple[Rows, int]:
        """All groups count from the same corner."""
        return positions + prefix, max(previous, question + prefix)

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """The frame's grid, and one place in time."""
        return np.array([1, *keep], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class VideoPositions(GridPositions):
    """One grid; t counts ticks from the window's first frame."""

    ticks_per_second: float = 1.0

    def _times(self, window: _Numbering) -> Rows:
        origin = window.frames[0].slot_us if window.origin_us is None else window.origin_us
        seconds = np.array([frame.slot_us - origin for frame in window.frames]) / 1e6
        # A sampling point is rounded to a microsecond: a tick that it reaches exactly must not be missed.
        ticks: Rows = np.floor(seconds * self.ticks_per_second + 1e-4).astype(np.int64)
        return ticks

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """Only time separates the next frame."""
        return np.array([max(1, round(self.ticks_per_second * frame_us / 1e6)), 0, 0], dtype=np.int64)

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """The ticks of a frame."""
        # Never zero: callers divide a limit of positions by it.
        return max(self.ticks_per_second / fps, 1e-3)


class NumberedPositions(GridPositions):
    """One grid; t is the number of the frame, whatever its time."""

    def _times(self, window: _Numbering) -> Rows:
        numbers: Rows = window.first + np.arange(len(window.frames))
        return numbers

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """The next frame has the next number."""
        return np.array([1, 0, 0], dtype=np.int64)

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """One number for each encoded frame."""
        return 1 / temporal


def _inside(counts: Rows) -> Rows:
    """Count 0, 1, ... within each of consecutive groups of `counts` rows."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
