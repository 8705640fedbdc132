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
    """Describes which rows of a window are text and which are visual, in prompt order.

    First `prefix` rows; then, per frame, `before` text rows, `counts` kept tokens and `after` text rows, each
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
        """Number of rows."""
        return self.prefix + int(self.before.sum() + self.counts.sum() + self.after.sum())


@dataclass(frozen=True, slots=True)
class PositionRule(ABC):
    """How a model numbers the rows of a window. `limit` is the first position beyond its range.

    Source: `get_rope_index` of transformers' models. Text after a frame starts at the maximum over all axes +
    1 (vLLM's rule), counted on the full grid, so that pruning does not shift positions.
    """

    limit: int
    axes: ClassVar[int]
    """Number of axes: rows of a plan's `positions`."""

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
            compact: Count kept tokens only; for rules of one axis.
            origin_us: The sampling point from which time counts, if the frames continue a video; None: the
                first frame's sampling point.
            first: How many frames of the video precede these.

        Raises:
            WindowError: The rule cannot number such rows.
        """
        if compact and self.axes > 1:
            raise WindowError("compact positions are for models with one axis, but this model numbers grids")
        positions = np.empty((self.axes, rows.rows), dtype=np.int64)
        positions[:, : rows.prefix] = np.arange(rows.prefix)
        return positions, self._place(_Numbering(positions, rows, frames, compact, origin_us, first))

    @abstractmethod
    def _place(self, window: _Numbering) -> int:
        """Number the rows after the prefix; return the position after the window."""

    def continued(self, positions: Rows, question: int, prefix: int, previous: int) -> tuple[Rows, int]:
        """Shift a later group of a recording, which was placed on its own, to its place after the previous
        groups.

        Return its positions and the first position after it. `previous` is the position after the previous
        groups, `prefix` the number of rows in front of all groups.
        """
        return positions + previous, question + previous

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """Return the positions that one frame spans, int64 [axes]. `keep` is the shape of its grid, `stop`
        the position after it."""
        return np.full(self.axes, stop, dtype=np.int64)

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """Return the distance from a frame of this shape to the next one, `frame_us` later, int64 [axes]."""
        return shape

    @abstractmethod
    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """Return the mean number of positions per frame. Each `temporal` frames take `rows` prompt rows and a
        grid of `tokens` (rows, columns); `fps` is the number of frames a second."""


@dataclass(frozen=True, slots=True)
class _Numbering:
    """A window whose rows are being numbered. Results go into `positions` int64 [axes, rows]; the other
    fields are as in `place`."""

    positions: Rows
    rows: RowLayout
    frames: Sequence[EncodedFrame]
    compact: bool
    origin_us: int | None
    first: int

    @property
    def cells(self) -> Rows:
        """For every visual row, the group of the grid that it shows, int64 [tokens]."""
        parts = [frame.kept for frame in self.frames]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def per_frame(self, extent: Callable[[EncodedFrame], int]) -> Rows:
        """Return `extent` for every frame, int64 [frames]."""
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
            local: Position of every visual row within its frame, int64 [axes, tokens] or [tokens].
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
    """One axis: each row is one after the row before it; dropped tokens count too."""

    axes = 1

    def _place(self, window: _Numbering) -> int:
        if window.compact:
            return window.frame_by_frame(window.rows.inside, window.rows.counts)
        return window.frame_by_frame(window.cells, window.per_frame(lambda frame: frame.keep.size))

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """One position per row."""
        return rows / temporal


class FramePositions(PositionRule):
    """Three axes: every frame is a separate grid after its label, in which t is constant."""

    axes = 3

    def _place(self, window: _Numbering) -> int:
        still = np.zeros(len(window.frames), np.int64)
        return window.frame_by_frame(
            window.grid(still), window.per_frame(lambda frame: max(frame.keep.shape))
        )

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """The text rows plus the longer side of the grid."""
        return (rows - tokens[0] * tokens[1] + max(tokens)) / temporal


class GridPositions(PositionRule):
    """Three axes: all frames form one grid; the subclass defines its time axis."""

    axes = 3

    @abstractmethod
    def _times(self, window: _Numbering) -> Rows:
        """Return every frame's place on the time axis, counted from the video's first frame, int64
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
        """As in the base class, but all groups count from the same origin."""
        return positions + prefix, max(previous, question + prefix)

    def shape(self, keep: tuple[int, int], stop: int) -> Rows:
        """The shape of the frame's grid, and one step in time."""
        return np.array([1, *keep], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class VideoPositions(GridPositions):
    """One grid; t counts ticks from the window's first frame."""

    ticks_per_second: float = 1.0

    def _times(self, window: _Numbering) -> Rows:
        origin = window.frames[0].slot_us if window.origin_us is None else window.origin_us
        seconds = np.array([frame.slot_us - origin for frame in window.frames]) / 1e6
        # Sampling points are rounded to microseconds; one that is exactly at a tick must not miss it.
        ticks: Rows = np.floor(seconds * self.ticks_per_second + 1e-4).astype(np.int64)
        return ticks

    def ticks(self, shape: Rows, frame_us: int) -> Rows:
        """The next frame differs only in time."""
        return np.array([max(1, round(self.ticks_per_second * frame_us / 1e6)), 0, 0], dtype=np.int64)

    def per_frame(self, rows: float, tokens: tuple[int, int], temporal: int, fps: float) -> float:
        """The ticks per frame."""
        # Never zero, because callers divide the number of positions by it.
        return max(self.ticks_per_second / fps, 1e-3)


class NumberedPositions(GridPositions):
    """One grid; t is the frame's number, whatever its time."""

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
    """Number rows 0, 1, ... within each of consecutive groups, which have `counts` rows."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
