"""Position ids of a window's rows, counted from its start; the one place where families are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookout.windows.types import EncodedFrame, PositionRule, Rows, WindowError


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which rows of a window are text and which visual, in prompt order.

    `prefix` leading rows; then per frame `opening` rows [frames, text before], its kept tokens (all frames'
    in `visual`; `counts` of each frame, `inside` their number in it), `closing` rows [frames, text after].
    """

    prefix: int
    opening: Rows
    visual: Rows
    closing: Rows
    counts: Rows
    inside: Rows

    @classmethod
    def of(cls, frames: Sequence[EncodedFrame], prefix: int, before: int, after: int) -> RowLayout:
        """Places of frames with `before` and `after` text rows around each."""
        counts = np.array([len(frame.kept) for frame in frames], dtype=np.int64)
        stops = prefix + np.cumsum(counts + (before + after))
        starts = stops - after - counts
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(
            prefix=prefix,
            opening=(starts - before)[:, None] + np.arange(before),
            visual=np.repeat(starts, counts) + inside,
            closing=(stops - after)[:, None] + np.arange(after),
            counts=counts,
            inside=inside,
        )

    @property
    def rows(self) -> int:
        """All rows."""
        return self.prefix + self.opening.size + len(self.visual) + self.closing.size


def positions_of(
    rule: PositionRule, compact: bool, places: RowLayout, frames: Sequence[EncodedFrame]
) -> tuple[Rows, int]:
    """Positions int64 [axes, rows] of a window, and the position of the first text row behind it.

    Sources: `get_rope_index` of transformers' Qwen2.5-VL and Qwen3-VL; text after a frame starts at the
    maximum over all axes + 1 (vLLM's rule), counted on the full grid, so that pruning moves nothing.
    """
    if compact and rule.kind != "linear":
        raise WindowError(f"compact positions are for 1-D models; {rule.kind} numbers grids")
    positions = np.empty((rule.axes, places.rows), dtype=np.int64)
    positions[:, : places.prefix] = np.arange(places.prefix)
    if rule.kind == "qwen2_5_vl":
        return positions, _video(rule, places, frames, positions)
    before, after = places.opening.shape[1], places.closing.shape[1]
    kept = np.concatenate([frame.kept for frame in frames])
    if rule.kind == "qwen3_vl":
        cols = np.repeat([frame.keep.shape[1] for frame in frames], places.counts)
        local = np.stack([np.zeros_like(kept), kept // cols, kept % cols])
        extents = np.array([max(frame.keep.shape) for frame in frames], dtype=np.int64)
    else:
        local = places.inside if compact else kept
        extents = places.counts if compact else np.array([frame.keep.size for frame in frames], np.int64)
    ends = places.prefix + np.cumsum(extents + (before + after))
    corners = ends - after - extents
    positions[:, places.opening] = (corners - before)[:, None] + np.arange(before)
    positions[:, places.visual] = np.repeat(corners, places.counts) + local
    positions[:, places.closing] = (ends - after)[:, None] + np.arange(after)
    return positions, int(ends[-1])


def _video(rule: PositionRule, places: RowLayout, frames: Sequence[EncodedFrame], positions: Rows) -> int:
    """All frames as one grid, t in ticks from the first frame; the position behind it."""
    if places.opening.size or places.closing.size:
        raise WindowError("qwen2_5_vl numbers all frames as one video: no labels between frames")
    corner, origin = places.prefix, frames[0].time_us
    seconds = np.array([frame.time_us - origin for frame in frames]) / 1e6
    ticks = np.floor(seconds * rule.ticks_per_second).astype(np.int64)
    kept = np.concatenate([frame.kept for frame in frames])
    cols = np.repeat([frame.keep.shape[1] for frame in frames], places.counts)
    local = np.stack([np.repeat(ticks, places.counts), kept // cols, kept % cols])
    positions[:, places.visual] = corner + local
    extents: list[int] = [int(ticks.max()) + 1, *(max(frame.keep.shape) for frame in frames)]
    return corner + max(extents)
