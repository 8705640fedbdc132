"""Qwen3-VL: position rows interpolated on the full grid, DeepStack features on the same groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from lookout.models.families.towers.qwen import QwenTower
from lookout.models.vision.types import Grid, Mask


class Qwen3Tower(QwenTower):
    """Qwen3-VL's tower: every layer attends inside the whole temporal patch."""

    family = "qwen3_vl"

    def _layout(
        self, grids: Sequence[Grid], kept: Sequence[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[list[int], ...]]:
        indices, weights = [], []
        for grid, groups in zip(grids, kept, strict=True):
            index, weight = get_vision_interpolation_indices_and_weights(
                self._shape(grid),
                num_grid_per_side=self.vision.num_grid_per_side,
                mode=self.vision.interpolation_mode,
                align_corners=self.vision.interpolation_align_corners,
                spatial_merge_size=grid.merge,
            )
            indices.append(index.view(grid.tokens, self._unit, -1)[groups].flatten(0, 1))
            weights.append(weight.view(grid.tokens, self._unit, -1)[groups].flatten(0, 1))
        layout = {
            "interp_indices": torch.cat(indices).to(self.device),
            "interp_weights": torch.cat(weights).to(self.device),
        }
        return layout, ()

    def _pairs(self, grid: Grid, keep: Mask) -> int:
        return len(self.vision.blocks) * (int(keep.sum()) * self._unit) ** 2
