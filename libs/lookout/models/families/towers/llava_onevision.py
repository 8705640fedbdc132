"""LLaVA-OneVision: SigLIP, a projector per patch, then bilinear pooling to half the grid (27 -> 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from lookout.models import flops
from lookout.models.families.towers.llava import LlavaTower
from lookout.models.vision.types import FrameInput, FrameTokens, Grid, Mask


def pooling(patches: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return, for each of ceil(patches / 2) tokens along an axis, the patches from which it is pooled, and
    their weights.

    These are the taps of `F.interpolate(mode="bilinear", align_corners=False)`. For 27 patches, row 13 feeds
    tokens 6 and 7.
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


class LlavaOnevisionTower(LlavaTower):
    """SigLIP on every patch that contributes to a kept token. Patches are pooled as the model pools the
    frames of a video."""

    family = "llava_onevision"
    strategy = "full"

    def _taps(self, patches: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(patch for patch, _ in token) for token in pooling(patches))

    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        hidden, numbers = self._sequences(frames, grids)
        projected = self.model.multi_modal_projector(hidden[None])[0]
        parts = projected.split([len(cells) for cells in numbers])
        return [
            FrameTokens(self._pooled(part, cells, grid, frame.keep))
            for part, cells, grid, frame in zip(parts, numbers, grids, frames, strict=True)
        ]

    def _pooled(self, rows: torch.Tensor, kept: torch.Tensor, grid: Grid, keep: Mask) -> torch.Tensor:
        """Pool one frame's projected patches into its kept tokens, [kept tokens, hidden]."""
        axis = torch.zeros(grid.group_rows, grid.rows, dtype=torch.float64)
        for token, taps in enumerate(pooling(grid.rows)):
            for patch, weight in taps:
                axis[token, patch] = weight
        down, across = (torch.from_numpy(where) for where in np.nonzero(keep))
        weights = axis[down][:, kept // grid.cols] * axis[across][:, kept % grid.cols]
        return weights.to(rows.device, rows.dtype) @ rows

    def _flops(self, grid: Grid, keep: Mask) -> int:
        patches, groups = int(grid.patches(keep).sum()), int(keep.sum())
        width, layers = int(self.vision.config.hidden_size), self._used_layers()
        return (
            flops.products(patches, 3 * grid.patch**2 * width)
            + flops.products(patches, flops.linear_weights([*layers, self.model.multi_modal_projector]))
            + flops.attention(len(layers) * patches * patches, width)
            + flops.products(groups, patches * grid.hidden)
        )
