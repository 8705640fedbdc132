"""Towers whose layers take one plain sequence per image: InternVL (with a class token) and SigLIP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from lookout.vision.base import BaseTower, patch_rows
from lookout.vision.sequences import Sequences, attending
from lookout.vision.types import FrameInput, Grid


class PlainTower(BaseTower):
    """Kept patches of all frames in one packed sequence through the stock encoder."""

    leading: int = 0
    """Rows in front of the patches of every frame (1 with a class token)."""

    def _sequences(
        self, frames: Sequence[FrameInput], grids: Sequence[Grid]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Encoder output [rows, width] of all frames in order, and the kept patch numbers of each frame."""
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
        with attending(Sequences.of(lengths, self.device)):
            hidden = self._layers(rows[None])[0]
        return hidden, numbers

    @abstractmethod
    def _embed(self, patches: torch.Tensor) -> torch.Tensor:
        """Patches [n, 3, patch, patch] to rows [n, width], without positions."""

    @abstractmethod
    def _positions(self, grid: Grid) -> torch.Tensor:
        """Position rows [rows * cols, width] of the full grid."""

    def _front(self, grid: Grid) -> torch.Tensor:
        """The leading row [1, width] of a frame, its position added."""
        raise AssertionError(f"{self.family} has no leading row")

    @abstractmethod
    def _layers(self, rows: torch.Tensor) -> torch.Tensor:
        """The encoder up to the layer whose features the model uses, [1, n, width] to [1, n, width]."""


def _prepend(rows: torch.Tensor, front: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """One `front` row before the rows of each frame."""
    parts = []
    for first, part in zip(front, torch.split(rows, list(counts)), strict=True):
        parts += [first[None], part]
    return torch.cat(parts)
