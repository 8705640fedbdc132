"""InternVL3: class token kept, absolute position rows, pixel shuffle on the full grid."""

from __future__ import annotations

import torch
from torch import nn

from lookout.models.vision.types import Grid, VisionError
from lookout.models.vision.vit import GroupedTower


class InternVLTower(GroupedTower):
    """InternVL's ViT on kept 2x2 groups. Each kept group attends to the class token and to the kept patches
    of its frame."""

    family = "internvl"
    leading = 1

    def _vision(self) -> nn.Module:
        if self.config.vision_feature_layer != -1 or self.config.vision_feature_select_strategy != "default":
            raise VisionError(
                "internvl: only the last layer's patch features are supported, but the checkpoint uses layer "
                f"{self.config.vision_feature_layer}, strategy {self.config.vision_feature_select_strategy!r}"
            )
        vision: nn.Module = self.model.vision_tower
        return vision

    def _default_size(self) -> tuple[int, int]:
        height, width = self.vision.config.image_size
        return int(height), int(width)

    def _make_grid(self, height: int, width: int) -> Grid:
        patch = int(self.vision.config.patch_size[0])
        merge = round(1 / self.config.downsample_ratio)
        return self._shuffled_grid(height, width, patch, merge)

    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.patch_embeddings(patches)
        return rows[:, 0]

    def _all_positions(self, grid: Grid) -> torch.Tensor:
        embeddings = self.vision.embeddings
        if embeddings.position_embeddings is None:
            return torch.zeros(1, device=self.device, dtype=self.dtype).expand(grid.rows * grid.cols + 1, 1)
        shape = embeddings.position_embeddings.new_empty(1, grid.rows * grid.cols + 1, 1)
        shape = shape.expand(-1, -1, embeddings.position_embeddings.shape[-1])
        rows: torch.Tensor = embeddings.interpolate_pos_encoding(shape, grid.height, grid.width)
        return rows[0]

    def _positions(self, grid: Grid) -> torch.Tensor:
        return self._all_positions(grid)[1:]

    def _front(self, grid: Grid) -> torch.Tensor:
        row: torch.Tensor = self.vision.embeddings.cls_token[0] + self._all_positions(grid)[:1]
        return row

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.vision.layernorm(self.vision.encoder(rows).last_hidden_state)
        return hidden

    def _used_layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.vision.encoder.layer
        return layers

    def _grouped(self, full: torch.Tensor, grid: Grid) -> torch.Tensor:
        square = full.view(1, grid.rows, grid.cols, -1)
        groups: torch.Tensor = self.model.pixel_shuffle(square, scale_factor=self.config.downsample_ratio)
        return groups.flatten(0, 2)
