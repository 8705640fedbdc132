"""Position ids of a window's rows, counted from its start; the one place where families are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookout.windows.types import EncodedFrame, PositionRule, Rows, WindowError


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which rows of a window are text and which visual, in prompt order.

    `prefix` leading rows; then per shown frame `before` text rows, `counts` kept tokens and `after` text
    rows, each int64 [frames].
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


def positions_of(
    rule: PositionRule,
    compact: bool,
    places: RowLayout,
    frames: Sequence[EncodedFrame],
    origin_us: int | None = None,
) -> tuple[Rows, int]:
    """Positions int64 [axes, rows] of a window, and the position of the first text row behind it.

    `origin_us` is the sampling point from which time counts, where the frames continue a
    video; None: the first frame's.

    Sources: `get_rope_index` of transformers' Qwen2.5-VL and Qwen3-VL; text after a frame starts at the
    maximum over all axes + 1 (vLLM's rule), counted on the full grid, so that pruning moves nothing.
    """
    if compact and rule.kind != "linear":
        raise WindowError(f"compact positions are for 1-D models; {rule.kind} numbers grids")
    positions = np.empty((rule.axes, places.rows), dtype=np.int64)
    positions[:, : places.prefix] = np.arange(places.prefix)
    if rule.kind == "qwen2_5_vl":
        return positions, _video(rule, places, frames, positions, origin_us)
    kept = _joined([frame.kept for frame in frames])
    if rule.kind == "qwen3_vl":
        cols = np.repeat([frame.keep.shape[1] for frame in frames], places.counts)
        local = np.stack([np.zeros_like(kept), kept // cols, kept % cols])
        extents = np.array([max(frame.keep.shape) for frame in frames], dtype=np.int64)
    else:
        local = places.inside if compact else kept
        extents = places.counts if compact else np.array([frame.keep.size for frame in frames], np.int64)
    before, after, starts = places.before, places.after, places.starts
    ends = places.prefix + np.cumsum(before + extents + after)
    corners = ends - after - extents
    opening, closing = _inside(before), _inside(after)
    positions[:, np.repeat(starts, before) + opening] = np.repeat(corners - before, before) + opening
    positions[:, places.visual] = np.repeat(corners, places.counts) + local
    behind = np.repeat(starts + before + places.counts, after) + closing
    positions[:, behind] = np.repeat(ends - after, after) + closing
    return positions, int(ends[-1]) if len(ends) else places.prefix


def _video(
    rule: PositionRule,
    places: RowLayout,
    frames: Sequence[EncodedFrame],
    positions: Rows,
    origin_us: int | None,
) -> int:
    """All frames as one grid, t in ticks from the origin; the position behind it."""
    if places.before.any() or places.after.any():
        raise WindowError("qwen2_5_vl numbers all frames as one video: no labels between frames")
    corner = places.prefix
    if not frames:
        return corner
    origin = frames[0].slot_us if origin_us is None else origin_us
    seconds = np.array([frame.slot_us - origin for frame in frames]) / 1e6
    # A sampling point is rounded to a microsecond: a tick that it reaches exactly must not be missed.
    ticks = np.floor(seconds * rule.ticks_per_second + 1e-4).astype(np.int64)
    kept = _joined([frame.kept for frame in frames])
    cols = np.repeat([frame.keep.shape[1] for frame in frames], places.counts)
    local = np.stack([np.repeat(ticks, places.counts), kept // cols, kept % cols])
    positions[:, places.visual] = corner + local
    extents: list[int] = [int(ticks.max()) + 1, *(max(frame.keep.shape) for frame in frames)]
    return corner + max(extents)


def _inside(counts: Rows) -> Rows:
    """0, 1, ... within each of consecutive groups of `counts` rows."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
