"""Position ids of a window's rows, counted from its start; the one place where families are numbered."""

from __future__ import annotations

import math

import numpy as np

from lookout.windows.types import BlockFrame, PositionRule, Rows, WindowError


class Numbering:
    """Numbers the rows of one window in prompt order into `positions`, int64 [axes, rows].

    Sources: `get_rope_index` of transformers' Qwen2.5-VL and Qwen3-VL; text after a frame starts at the
    maximum over all axes + 1 (vLLM's rule), counted on the full grid, so that pruning moves nothing.
    """

    def __init__(self, rule: PositionRule, compact: bool, rows: int, origin_us: int) -> None:
        if compact and rule.kind != "linear":
            raise WindowError(f"compact positions are for 1-D models; {rule.kind} numbers grids")
        self.rule = rule
        self.compact = compact
        self.origin_us = origin_us
        self.positions: Rows = np.zeros((rule.axes, rows), dtype=np.int64)
        self._row = 0
        self._next = 0
        self._video: int | None = None

    def next(self) -> int:
        """The position of the first text row behind everything numbered so far."""
        return self._next

    def text(self, count: int) -> None:
        """Number `count` text rows, equal on all axes."""
        if not count:
            return
        if self._video is not None:
            raise WindowError("qwen2_5_vl numbers all frames as one video: no labels between frames")
        self._put(np.arange(self._next, self._next + count))
        self._next += count

    def frame(self, frame: BlockFrame) -> None:
        """Number the kept tokens of one frame, row-major on its full grid."""
        kept = frame.kept
        rows, cols = frame.keep.shape
        if self.rule.kind == "linear":
            start = self._next
            self._put(start + (np.arange(len(kept)) if self.compact else kept))
            self._next += len(kept) if self.compact else frame.keep.size
        elif self.rule.kind == "qwen3_vl":
            self._grid(kept, cols, self._next, self._next)
            self._next += max(rows, cols)
        else:
            self._video = self._next if self._video is None else self._video
            ticks = math.floor((frame.time_us - self.origin_us) / 1e6 * self.rule.ticks_per_second)
            self._grid(kept, cols, self._video + ticks, self._video)
            self._next = max(self._next, self._video + max(ticks + 1, rows, cols))

    def _grid(self, kept: Rows, cols: int, time: int, corner: int) -> None:
        self._put(np.stack([np.full(len(kept), time), corner + kept // cols, corner + kept % cols]))

    def _put(self, values: Rows) -> None:
        count = values.shape[-1]
        self.positions[:, self._row : self._row + count] = values
        self._row += count
