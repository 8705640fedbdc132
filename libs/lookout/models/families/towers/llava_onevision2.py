"""LLaVA-OneVision-2: every frame attends within itself, at time 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lookout.models.families.towers.llava_onevision2_model import AXES, still_positions
from lookout.models.families.towers.qwen import QwenTower
from lookout.models.vision.types import Grid, Mask, VisionError


class LlavaOnevision2Tower(QwenTower):
    """The tower on kept 2x2 groups. As in vLLM's frame backend, which runs it on whole frames, each frame is
    a separate picture. Attention windows of several frames are for canvases, whose tokens depend on one
    another."""

    family = "llava_onevision2"

    def _vision(self) -> nn.Module:
        vision: nn.Module = self.model.visual
        config: Any = vision.config
        kinds = (config.layer_norm_type, config.hidden_act, bool(config.use_head), config.temporal_patch_size)
        if kinds != ("layer_norm", "gelu", False, 1):
            raise VisionError(
                f"{self.family}: only layer_norm, gelu, no head and one frame per patch are supported, but "
                "the checkpoint has layer_norm_type, hidden_act, use_head, temporal_patch_size = "
                f"{', '.join(map(str, kinds))}"
            )
        head = int(config.hidden_size) // int(config.num_attention_heads)
        if head % (2 * sum(AXES)):
            raise VisionError(
                f"{self.family}: a head of {head} entries is not divisible by {2 * sum(AXES)}, which its "
                "positions need"
            )
        return vision

    def _default_size(self) -> tuple[int, int]:
        config = self.vision.config
        token = int(config.patch_size * config.spatial_merge_size)
        side = int(config.image_size) // token * token
        return side, side

    def _places(self, grid: Grid) -> torch.Tensor:
        return still_positions(self._shape(grid), grid.merge)

    def _layout(
        self, grids: Sequence[Grid], kept: Sequence[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[list[int], ...]]:
        return {}, ()

    def _pairs(self, grid: Grid, keep: Mask) -> int:
        return len(self.vision.blocks) * (int(keep.sum()) * self._unit) ** 2
