"""Qwen2.5-VL: attention windows are cut on the full grid, then compacted; empty windows are dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers.vision_utils import get_vision_window_index

from lookout.models.families.towers.qwen import QwenTower
from lookout.models.vision.sequences import Sequences
from lookout.models.vision.types import Grid, Mask


class Qwen25Tower(QwenTower):
    """Qwen2.5-VL's tower: most layers attend inside windows, a few inside the whole temporal patch."""

    family = "qwen2_5_vl"

    def _windows(self, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the groups of the full grid in window order, and each group's window."""
        config = self.vision.config
        order, edges = get_vision_window_index(
            self._shape(grid), config.spatial_merge_size, config.window_size, config.patch_size
        )
        sizes = (edges[1:] - edges[:-1]).long() // self._unit
        return order, torch.repeat_interleave(torch.arange(len(sizes)), sizes)

    def _kept_windows(self, grid: Grid, groups: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return the kept groups ordered by window, as indices into `groups`, and the group counts of
        non-empty windows."""
        order, window = self._windows(grid)
        place = torch.full((grid.tokens,), -1)
        place[groups] = torch.arange(len(groups))
        inside = place[order] >= 0
        counts = torch.bincount(window[inside])
        return place[order][inside], counts[counts > 0].tolist()

    def _layout(
        self, grids: Sequence[Grid], kept: Sequence[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[list[int], ...]]:
        index, lengths, start = [], [], 0
        for grid, groups in zip(grids, kept, strict=True):
            order, counts = self._kept_windows(grid, groups)
            index.append(order + start)
            lengths += [count * self._unit for count in counts]
            start += len(groups)
        return {"window_index": torch.cat(index).to(self.device)}, (lengths,)

    def _boundaries(self, segments: Sequence[Sequences]) -> dict[str, torch.Tensor | int]:
        _, windows = segments
        return {"cu_window_seqlens": windows.cumulative, "max_window_seqlen": windows.longest}

    def _pairs(self, grid: Grid, keep: Mask) -> int:
        _, counts = self._kept_windows(grid, torch.from_numpy(np.flatnonzero(keep)))
        full_blocks = len(set(self.vision.config.fullatt_block_indexes) & set(range(len(self.vision.blocks))))
        inside = sum((count * self._unit) ** 2 for count in counts)
        frame = (int(keep.sum()) * self._unit) ** 2
        return full_blocks * frame + (len(self.vision.blocks) - full_blocks) * inside
