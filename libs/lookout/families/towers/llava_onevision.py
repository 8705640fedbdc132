"""LLaVA-OneVision: SigLIP, a projector per patch, then bilinear pooling to half the grid (27 -> 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from lookout import flops
from lookout.vision.types import FrameInput, FrameTokens, Grid, Mask, VisionError
from lookout.vision.vit import PlainTower


def pooling(patches: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """For each of ceil(patches / 2) tokens along an axis: the patches it taps and their weights.

    The taps of `F.interpolate(mode="bilinear", align_corners=False)`. For 27 patches, row 13 feeds tokens 6
    and 7.
    """
    tokens = math.ceil(patches / 2)
    out = []
    for token in range(tokens):
        source = max((token + 0.5) * patches / tokens - 0.5, 0.0)
        low = min(int(source), patches - 1)
        share = source - low
        high = min(low + 1, patches - 1)
        taps = {low: 1 - share}
        if share > 0 and high != low:
            taps[high] = share
        out.append(tuple(taps.items()))
    return tuple(out)


class LlavaOnevisionTower(PlainTower):
    """SigLIP on every tap of the kept tokens, pooled as the model pools the frames of a video."""

    family = "llava_onevision"

    def _vision(self) -> nn.Module:
        layer, strategy = self.config.vision_feature_layer, self.config.vision_feature_select_strategy
        if not isinstance(layer, int) or strategy != "full":
            raise VisionError(
                "llava_onevision: one feature layer with strategy 'full' is supported, not "
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
        taps = tuple(tuple(patch for patch, _ in token) for token in pooling(rows))
        hidden, margin = int(self.config.text_config.hidden_size), side - rows * patch
        return Grid(rows, rows, patch, 1, taps, taps, hidden, remainder=(margin, margin))

    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.patch_embedding(patches)
        return rows.flatten(1)

    def _positions(self, grid: Grid) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.position_embedding.weight
        return rows

    def _used_layers(self) -> int:
        """Encoder layers that feed the model's feature layer (hidden state 0 is the embedding)."""
        count = len(self.vision.encoder.layers)
        layer = int(self.config.vision_feature_layer)
        return layer if layer >= 0 else count + 1 + layer

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.vision.encoder.layers[: self._used_layers()]:
            rows = layer(rows, None)
        return rows

    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        hidden, numbers = self._sequences(frames, grids)
        projected = self.model.multi_modal_projector(hidden[None])[0]
        parts = projected.split([len(cells) for cells in numbers])
        return [
            FrameTokens(self._pooled(part, cells, grid, frame.keep))
            for part, cells, grid, frame in zip(parts, numbers, grids, frames, strict=True)
        ]

    def _pooled(self, rows: torch.Tensor, kept: torch.Tensor, grid: Grid, keep: Mask) -> torch.Tensor:
        """Projected patches of one frame to its kept tokens, [kept tokens, hidden]."""
        axis = torch.zeros(grid.group_rows, grid.rows, dtype=torch.float64)
        for token, taps in enumerate(pooling(grid.rows)):
            for patch, weight in taps:
                axis[token, patch] = weight
        down, across = (torch.from_numpy(where) for where in np.nonzero(keep))
        weights = axis[down][:, kept // grid.cols] * axis[across][:, kept % grid.cols]
        return weights.to(rows.device, rows.dtype) @ rows

    def _flops(self, grid: Grid, keep: Mask) -> int:
        patches, groups = int(grid.patches(keep).sum()), int(keep.sum())
        width, layers = int(self.vision.config.hidden_size), self.vision.encoder.layers[: self._used_layers()]
        return (
            flops.products(patches, 3 * grid.patch**2 * width)
            + flops.products(patches, flops.linear_weights([layers, self.model.multi_modal_projector]))
            + flops.attention(len(layers) * patches * patches, width)
            + flops.products(groups, patches * grid.hidden)
        )
