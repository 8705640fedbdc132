"""Base of the Qwen towers: whole 2x2 groups in block-major order, two frames per temporal patch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.vision_utils import get_vision_position_ids

from lookout.models import flops
from lookout.models.vision.base import BaseTower, disjoint
from lookout.models.vision.passes import Tensors
from lookout.models.vision.sequences import Sequences, attending
from lookout.models.vision.types import FrameInput, FrameTokens, Grid, Mask


def block_major(pixels: NDArray[np.uint8], patch: int, merge: int) -> NDArray[np.uint8]:
    """Cut pixels [t, height, width, 3] into patches [groups, merge * merge, 3, t, patch, patch], groups in
    row-major order."""
    frames, height, width, _ = pixels.shape
    side = patch * merge
    cut = pixels.reshape(frames, height // side, merge, patch, width // side, merge, patch, 3)
    return cut.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(-1, merge * merge, 3, frames, patch, patch)


class QwenTower(BaseTower):
    """Runs kept groups through the stock tower, which accepts the caller's positions and boundaries in place
    of its own."""

    def _vision(self) -> nn.Module:
        vision: nn.Module = self.model.visual
        return vision

    def _default_size(self) -> tuple[int, int]:
        return 448, 448

    def _make_grid(self, height: int, width: int) -> Grid:
        config = self.vision.config
        side = int(config.patch_size * config.spatial_merge_size)
        if height <= 0 or width <= 0 or height % side or width % side:
            raise self._refuse_size(height, width, f"both sides must be multiples of {side}")
        return Grid(
            rows=height // config.patch_size,
            cols=width // config.patch_size,
            patch=int(config.patch_size),
            temporal=int(config.temporal_patch_size),
            row_taps=disjoint(height // side, config.spatial_merge_size),
            col_taps=disjoint(width // side, config.spatial_merge_size),
            hidden=int(self.config.text_config.hidden_size),
            deepstack=len(getattr(config, "deepstack_visual_indexes", ())),
        )

    @property
    def _width(self) -> int:
        """The width of a row inside the tower."""
        return int(self.vision.config.hidden_size)

    @property
    def _unit(self) -> int:
        return int(self.vision.config.spatial_merge_size) ** 2

    def _shape(self, grid: Grid) -> torch.Tensor:
        return torch.tensor([[1, grid.rows, grid.cols]])

    def _places(self, grid: Grid) -> torch.Tensor:
        """Return the positions of a grid's patches, group by group, int64 [patches, axes]."""
        places: torch.Tensor = get_vision_position_ids(self._shape(grid), grid.merge)
        return places

    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        cells = [torch.from_numpy(np.flatnonzero(frame.keep)) for frame in frames]
        layout, windows = self._layout(grids, cells)
        positions = [
            self._places(grid).view(len(frame.keep.ravel()), self._unit, -1)[groups].flatten(0, 1)
            for frame, grid, groups in zip(frames, grids, cells, strict=True)
        ]
        tensors = {
            "patches": self._pixels(frames, grids),
            "position_ids": torch.cat(positions).to(self.device),
        }
        counts = [len(groups) for groups in cells]
        frame_rows = [count * self._unit for count in counts]
        pooled, *levels = self._passes(tensors | layout, [frame_rows, *windows])
        tokens = torch.split(pooled, counts)
        if not levels:
            return [FrameTokens(part) for part in tokens]
        deep = torch.split(torch.stack(levels), counts, dim=1)
        return [FrameTokens(t, d) for t, d in zip(tokens, deep, strict=True)]

    def _run(self, tensors: Tensors, segments: Sequence[Sequences]) -> tuple[torch.Tensor, ...]:
        layout = dict(tensors)
        patches, frames = layout.pop("patches"), segments[0]
        with attending(*segments):
            out = self.vision(
                patches,
                grid_thw=self._shape(self.grid),  # unused: everything computed from it is passed in
                cu_seqlens=frames.cumulative,
                max_seqlen=frames.longest,
                **layout,
                **self._boundaries(segments),
            )
        return (out.pooler_output, *(getattr(out, "deepstack_features", None) or ()))

    def _boundaries(self, segments: Sequence[Sequences]) -> dict[str, torch.Tensor | int]:
        """Return the tower's additional arguments that describe segments."""
        del segments
        return {}

    def _pixels(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> torch.Tensor:
        parts = []
        for frame, grid in zip(frames, grids, strict=True):
            still = frame.pixels.shape[0] == 1
            pixels = np.repeat(frame.pixels, grid.temporal, axis=0) if still else frame.pixels
            parts.append(block_major(pixels, grid.patch, grid.merge)[frame.keep.ravel()])
        patches = torch.from_numpy(np.concatenate(parts)).flatten(0, 1).to(self.device)
        return self.normalise(patches, self.dtype).flatten(1)

    @abstractmethod
    def _layout(
        self, grids: Sequence[Grid], kept: Sequence[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], tuple[list[int], ...]]:
        """Return the additional row-wise arguments that this family's tower needs, and the number of rows of
        segments other than whole frames."""

    def _flops(self, grid: Grid, keep: Mask) -> int:
        groups = int(keep.sum())
        rows = groups * self._unit
        width = self._width
        mergers = [self.vision.merger, *getattr(self.vision, "deepstack_merger_list", [])]
        return (
            flops.products(rows, 3 * grid.temporal * grid.patch**2 * width)
            + flops.products(rows, flops.linear_weights(self.vision.blocks))
            + flops.attention(self._pairs(grid, keep), width)
            + flops.products(groups, flops.linear_weights(mergers))
        )

    @abstractmethod
    def _pairs(self, grid: Grid, keep: Mask) -> int:
        """Count the query-key pairs of one frame over all layers."""
