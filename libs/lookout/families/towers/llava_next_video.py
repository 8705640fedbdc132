"""LLaVA-NeXT-Video: CLIP with a class token, pooled over 2x2 patches before the projector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from lookout import flops
from lookout.vision.base import disjoint
from lookout.vision.types import FrameInput, FrameTokens, Grid, Mask, VisionError
from lookout.vision.vit import PlainTower


class LlavaNextVideoTower(PlainTower):
    """CLIP on kept 2x2 groups; each kept group sees the class token and the kept patches of its frame."""

    family = "llava_next_video"
    leading = 1

    def _vision(self) -> nn.Module:
        layer, strategy = self.config.vision_feature_layer, self.config.vision_feature_select_strategy
        mode = self.config.spatial_pool_mode
        if not isinstance(layer, int) or strategy != "default" or mode != "average":
            raise VisionError(
                "llava_next_video: one feature layer, strategy 'default' and average pooling are supported, "
                f"not the checkpoint's layer {layer}, strategy {strategy!r} and {mode!r} pooling"
            )
        vision: nn.Module = self.model.vision_tower
        return vision

    def _default_size(self) -> tuple[int, int]:
        side = int(self.vision.config.image_size)
        return side, side

    def _make_grid(self, height: int, width: int) -> Grid:
        side, patch = int(self.vision.config.image_size), int(self.vision.config.patch_size)
        stride = int(self.config.spatial_pool_stride)
        if (height, width) != (side, side):
            raise self._refuse_size(height, width, f"its position table is made for {side}x{side}")
        rows = side // patch
        if rows % stride:
            raise self._refuse_size(height, width, f"{rows} patches a side are not pooled by {stride}")
        taps, margin = disjoint(rows // stride, stride), side - rows * patch
        hidden = int(self.config.text_config.hidden_size)
        return Grid(rows, rows, patch, 1, taps, taps, hidden, remainder=(margin, margin))

    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.patch_embedding(patches)
        return rows.flatten(1)

    def _positions(self, grid: Grid) -> torch.Tensor:
        rows: torch.Tensor = self.vision.embeddings.position_embedding.weight
        return rows[1:]

    def _front(self, grid: Grid) -> torch.Tensor:
        embeddings = self.vision.embeddings
        row: torch.Tensor = embeddings.class_embedding + embeddings.position_embedding.weight[:1]
        return row

    def _used_layers(self) -> int:
        """Encoder layers that feed the model's feature layer (hidden state 0 is the normed embedding)."""
        count = len(self.vision.encoder.layers)
        layer = int(self.config.vision_feature_layer)
        return layer if layer >= 0 else count + 1 + layer

    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self.vision.pre_layrnorm(rows)
        for layer in self.vision.encoder.layers[: self._used_layers()]:
            rows = layer(rows, None)
        return rows

    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        hidden, numbers = self._sequences(frames, grids)
        parts, start = [], 0
        for frame, grid, cells in zip(frames, grids, numbers, strict=True):
            start += self.leading
            parts.append(self._pooled(hidden[start : start + len(cells)], cells, grid, frame.keep))
            start += len(cells)
        tokens = self.model.multi_modal_projector(torch.cat(parts))
        return [FrameTokens(part) for part in tokens.split([len(part) for part in parts])]

    def _pooled(self, rows: torch.Tensor, kept: torch.Tensor, grid: Grid, keep: Mask) -> torch.Tensor:
        """Rows of one frame, scattered to the grid, through the model's own pooling, [kept groups, width]."""
        full = rows.new_zeros(grid.rows * grid.cols, rows.shape[-1])
        full[kept.to(self.device)] = rows
        groups: torch.Tensor = self.model.vision_resampler(full[None])[0]
        return groups[torch.from_numpy(np.flatnonzero(keep)).to(self.device)]

    def _flops(self, grid: Grid, keep: Mask) -> int:
        groups = int(keep.sum())
        patches = groups * grid.merge**2
        width, layers = int(self.vision.config.hidden_size), self.vision.encoder.layers[: self._used_layers()]
        rows = patches + self.leading
        return (
            flops.products(patches, 3 * grid.patch**2 * width)
            + flops.products(rows, flops.linear_weights(layers))
            + flops.attention(len(layers) * rows * rows, width)
            + flops.products(groups, flops.linear_weights([self.model.multi_modal_projector]))
        )
