"""Towers whose layers take one plain sequence per image: ViT and CLIP (both with a class token), SigLIP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from lookout.models import flops
from lookout.models.vision.base import BaseTower, disjoint, patch_rows
from lookout.models.vision.passes import Tensors
from lookout.models.vision.sequences import Sequences, attending
from lookout.models.vision.types import FrameInput, FrameTokens, Grid, Mask


class PlainTower(BaseTower):
    """Runs the kept patches of all frames through the stock encoder in one packed sequence."""

    def _sequences(
        self, frames: Sequence[FrameInput], grids: Sequence[Grid]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the encoder output [rows, width] of all frames in order, and the kept patch numbers of each
        frame."""
        cut, numbers, places = [], [], []
        for frame, grid in zip(frames, grids, strict=True):
            encoded = grid.patches(frame.keep)
            cut.append(patch_rows(frame.pixels[0], grid.patch)[encoded])
            numbers.append(torch.from_numpy(np.flatnonzero(encoded)))
            places.append(self._positions(grid)[numbers[-1].to(self.device)])
        pixels = self.normalise(torch.from_numpy(np.concatenate(cut)).to(self.device), self.dtype)
        rows = self._embed(pixels) + torch.cat(places)
        lengths = [len(n) + self.leading for n in numbers]
        if self.leading:
            front = torch.cat([self._front(grid) for grid in grids])
            rows = _prepend(rows, front, [len(n) for n in numbers])
        (hidden,) = self._passes({"rows": rows}, [lengths])
        return hidden, numbers

    def _run(self, tensors: Tensors, segments: Sequence[Sequences]) -> tuple[torch.Tensor, ...]:
        with attending(*segments):
            return (self._layers(tensors["rows"][None])[0],)

    @abstractmethod
    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        """Embed patches [n, 3, patch, patch] as rows [n, width], without positions."""

    @abstractmethod
    def _positions(self, grid: Grid) -> torch.Tensor:
        """Return the position rows [rows * cols, width] of the full grid."""

    def _front(self, grid: Grid) -> torch.Tensor:
        """Return the leading row [1, width] of a frame, with its position added."""
        raise AssertionError(f"{self.family} has no leading row")

    @abstractmethod
    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        """Run the encoder up to the layer whose features the model uses, [1, n, width] to [1, n, width]."""


class GroupedTower(PlainTower):
    """A tower whose model pools the patches of a group before the projector, so kept groups are encoded
    whole, as one token each."""

    @property
    def _projector(self) -> nn.Module:
        """The module that turns a pooled group into a token."""
        projector: nn.Module = self.model.multi_modal_projector
        return projector

    @abstractmethod
    def _used_layers(self) -> nn.ModuleList:
        """Return the encoder layers that run."""

    @abstractmethod
    def _grouped(self, full: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Pool a full grid of patches [rows * cols, width] as the model does: [groups, any width]."""

    def _shuffled_grid(self, height: int, width: int, patch: int, merge: int) -> Grid:
        """Return the grid of a model that shuffles `merge` x `merge` patches into one row."""
        if height != width or height % (patch * merge) or height <= 0:
            rule = f"the model's pixel shuffle needs a square whose side is a multiple of {patch * merge}"
            raise self._refuse_size(height, width, rule)
        taps = disjoint(height // (patch * merge), merge)
        side = height // patch
        return Grid(side, side, patch, 1, taps, taps, int(self.config.text_config.hidden_size))

    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        hidden, numbers = self._sequences(frames, grids)
        parts, start = [], 0
        for frame, grid, cells in zip(frames, grids, numbers, strict=True):
            start += self.leading
            # Patches that were not encoded stay zero, because their groups are not kept.
            full = hidden.new_zeros(grid.rows * grid.cols, hidden.shape[-1])
            full[cells.to(self.device)] = hidden[start : start + len(cells)]
            groups = torch.from_numpy(np.flatnonzero(frame.keep)).to(self.device)
            parts.append(self._grouped(full, grid)[groups])
            start += len(cells)
        tokens = self._projector(torch.cat(parts))
        return [FrameTokens(part) for part in tokens.split([len(part) for part in parts])]

    def _flops(self, grid: Grid, keep: Mask) -> int:
        groups = int(keep.sum())
        patches = groups * grid.merge**2
        width, layers = int(self.vision.config.hidden_size), self._used_layers()
        rows = patches + self.leading
        return (
            flops.products(patches, 3 * grid.patch**2 * width)
            + flops.products(rows, flops.linear_weights(layers))
            + flops.attention(len(layers) * rows * rows, width)
            + flops.products(groups, flops.linear_weights([self._projector]))
        )


def _prepend(rows: torch.Tensor, front: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Put one `front` row before the rows of each frame."""
    parts = []
    for first, part in zip(front, torch.split(rows, list(counts)), strict=True):
        parts += [first[None], part]
    return torch.cat(parts)
