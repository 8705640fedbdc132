"""Base of LLaVA's towers: a stock CLIP or SigLIP, up to the feature layer that the checkpoint selects."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import nn

from lookout.models.vision.types import Grid, VisionError
from lookout.models.vision.vit import PlainTower


class LlavaTower(PlainTower):
    """The vision encoder, up to the checkpoint's feature layer. It takes only square pictures of one size,
    the size of its position table."""

    strategy: ClassVar[str]
    """The only `vision_feature_select_strategy` that the tower computes."""

    def _vision(self) -> nn.Module:
        layer, strategy = self.config.vision_feature_layer, self.config.vision_feature_select_strategy
        if not isinstance(layer, int) or strategy != self.strategy:
            raise VisionError(
                f"{self.family}: one feature layer with strategy {self.strategy!r} is supported, not "
                f"the checkpoint's layer {layer} with strategy {strategy!r}"
            )
        vision: nn.Module = self.model.vision_tower
        return vision

    def _default_size(self) -> tuple[int, int]:
        side = int(self.vision.config.image_size)
        return side, side

    def _make_grid(self, height: int, width: int) -> Grid:
        side, patch = int(self.vision.config.image_size), int(self.vision.config.patch_size)
        if (height, width) != (side, side):
            raise self._refuse_size(height, width, f"its position table is made for {side}x{side}")
        rows = side // patch
        taps = self._taps(rows)
        # SigLIP's 384 pixels are 27 patches of 14 pixels, plus 6 pixels that no patch covers.
        hidden, margin = int(self.config.text_config.hidden_size), side - rows * patch
        return Grid(rows, rows, patch, 1, taps, taps, hidden, remainder=(margin, margin))

    @abstractmethod
    def _taps(self, patches: int) -> tuple[tuple[int, ...], ...]:
        """Return the patches along one axis from which each token is pooled."""

    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.patch_embedding(patches)
        return rows.flatten(1)

    def _positions(self, grid: Grid) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.position_embedding.weight
        return rows[self.leading :]

    def _used_layers(self) -> nn.ModuleList:
        """Return the encoder layers up to the model's feature layer (hidden state 0 is the embedding)."""
        layers: nn.ModuleList = self.vision.encoder.layers
        layer = int(self.config.vision_feature_layer)
        return layers[: layer if layer >= 0 else len(layers) + 1 + layer]

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self._used_layers():
            rows = layer(rows, None)
        return rows
