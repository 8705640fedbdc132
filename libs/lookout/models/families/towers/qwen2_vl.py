"""Qwen2-VL: every layer attends inside the whole temporal patch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lookout.models.families.towers.qwen import QwenTower
from lookout.models.vision.types import Grid, Mask


class Qwen2Tower(QwenTower):
    """Qwen2-VL's tower."""

    family = "qwen2_vl"

    @property
    def _width(self) -> int:
        return int(self.vision.config.embed_dim)

    def _layout(
        self, grids: Sequence[Grid], kept: Sequence[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[list[int], ...]]:
        return {}, ()

    def _pairs(self, grid: Grid, keep: Mask) -> int:
        return len(self.vision.blocks) * (int(keep.sum()) * self._unit) ** 2
