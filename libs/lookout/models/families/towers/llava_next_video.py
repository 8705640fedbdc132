"""LLaVA-NeXT-Video: CLIP with a class token, pooled over 2x2 patches before the projector."""

from __future__ import annotations

import torch
from torch import nn

from lookout.models.families.towers.llava import LlavaTower
from lookout.models.vision.base import disjoint
from lookout.models.vision.types import Grid, VisionError
from lookout.models.vision.vit import GroupedTower


class LlavaNextVideoTower(LlavaTower, GroupedTower):
    """CLIP on kept 2x2 groups. Each kept group attends to the class token and to the kept patches of its
    frame."""

    family = "llava_next_video"
    strategy = "default"
    leading = 1

    def _vision(self) -> nn.Module:
        if (mode := self.config.spatial_pool_mode) != "average":
            raise VisionError(f"{self.family}: only average pooling is supported, not {mode!r}")
        return super()._vision()

    def _taps(self, patches: int) -> tuple[tuple[int, ...], ...]:
        side, stride = int(self.vision.config.image_size), int(self.config.spatial_pool_stride)
        if patches % stride:
            raise self._refuse_size(side, side, f"{patches} patches a side are not a multiple of {stride}")
        return disjoint(patches // stride, stride)

    def _front(self, grid: Grid) -> torch.Tensor:
        embeddings = self.vision.embeddings
        row: torch.Tensor = embeddings.class_embedding + embeddings.position_embedding.weight[:1]
        return row

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        return super()._layers(self.vision.pre_layrnorm(rows))

    def _grouped(self, full: torch.Tensor, grid: Grid) -> torch.Tensor:
        groups: torch.Tensor = self.model.vision_resampler(full[None])[0]
        return groups
