"""SmolVLM2: SigLIP on every patch of a kept group, shuffled into one row per group."""

from __future__ import annotations

import torch
from torch import nn

from lookout.models.vision.types import Grid
from lookout.models.vision.vit import GroupedTower


class SmolVLMTower(GroupedTower):
    """SigLIP on kept groups of `scale_factor` x `scale_factor` patches. Each group attends to the kept
    patches of its frame."""

    family = "smolvlm"

    def _vision(self) -> nn.Module:
        vision: nn.Module = self.model.vision_model
        return vision

    @property
    def _projector(self) -> nn.Module:
        projector: nn.Module = self.model.connector.modality_projection
        return projector

    def _default_size(self) -> tuple[int, int]:
        side = int(self.vision.config.image_size)
        return side, side

    def _make_grid(self, height: int, width: int) -> Grid:
        patch, merge = int(self.vision.config.patch_size), int(self.config.scale_factor)
        return self._shuffled_grid(height, width, patch, merge)

    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.patch_embedding(patches)
        return rows.flatten(1)

    def _positions(self, grid: Grid) -> torch.Tensor:
        """Return the rows of the position table at evenly spaced fractions of the picture's side.

        The stock embeddings of transformers 5 compute these fractions in the dtype of the pixels: in
        bfloat16, 6 of 27 patches along a side get the wrong row.
        """
        table = self.vision.embeddings.position_embedding.weight
        side = int(self.vision.embeddings.num_patches_per_side)
        place = torch.arange(grid.rows, device=self.device) * side // grid.rows
        rows: torch.Tensor = table[(place[:, None] * side + place).flatten()]
        return rows

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self._used_layers():
            rows = layer(rows, None)
        out: torch.Tensor = self.vision.post_layernorm(rows)
        return out

    def _used_layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.vision.encoder.layers
        return layers

    def _grouped(self, full: torch.Tensor, grid: Grid) -> torch.Tensor:
        groups: torch.Tensor = self.model.connector.pixel_shuffle(full[None], self.config.scale_factor)
        return groups[0]
