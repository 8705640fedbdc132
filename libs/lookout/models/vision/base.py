"""Base of all towers: checks, cutting pixels into patches, normalisation and counting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lookout.models.vision import sequences
from lookout.models.vision.passes import Passes, Tensors
from lookout.models.vision.types import FrameInput, FrameTokens, Grid, Mask, Pixels, VisionError


@dataclass(frozen=True, slots=True)
class Normalise:
    """Per-channel mean and standard deviation of RGB values in [0, 1], as in the checkpoint's processor."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Normalise uint8 [n, 3, ...] to `dtype` [n, 3, ...], computed in float32."""
        shape = (1, 3) + (1,) * (pixels.ndim - 2)
        mean = torch.tensor(self.mean, device=pixels.device).view(shape)
        std = torch.tensor(self.std, device=pixels.device).view(shape)
        return ((pixels.float() / 255 - mean) / std).to(dtype)


def disjoint(groups: int, merge: int) -> tuple[tuple[int, ...], ...]:
    """Return the patches of `groups` tokens along an axis, `merge` each, none of them shared."""
    return tuple(tuple(range(g * merge, (g + 1) * merge)) for g in range(groups))


def patch_rows(pixels: Pixels, patch: int) -> NDArray[np.uint8]:
    """Cut pixels [height, width, 3] into patches [rows, cols, 3, patch, patch], as a view. A
    remainder smaller than a patch is omitted."""
    rows, cols = pixels.shape[0] // patch, pixels.shape[1] // patch
    cut = pixels[: rows * patch, : cols * patch].reshape(rows, patch, cols, patch, 3)
    return cut.transpose(0, 2, 4, 1, 3)


class BaseTower(ABC):
    """A tower around a stock transformers vision model. Subclasses define how a family's kept patches are
    laid out."""

    family: ClassVar[str]
    leading: int = 0
    """Rows in front of the patches of every frame (1 with a class token)."""

    def __init__(self, model: nn.Module, normalise: Normalise, size: tuple[int, int] | None) -> None:
        """`model` is the stock multimodal model without its language head; `size` is the usual input (height,
        width)."""
        self.model: Any = model
        self.config: Any = model.config
        self.normalise = normalise
        self._grids: dict[tuple[int, int], Grid] = {}
        self.vision: Any = self._vision()
        sequences.attend_through(self.vision.config)
        parameter = next(self.vision.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self._size = size or self._default_size()
        self.grid_for(*self._size)
        self._passes = Passes(self._run, self.device)

    def pad_passes(self) -> None:
        """Run passes in padded shapes from now on; on a GPU, 16-bit towers replay these as CUDA graphs."""
        self._passes.pad(self.grid.rows * self.grid.cols + self.leading)

    @property
    def grid(self) -> Grid:
        """The grid of the usual input size."""
        return self.grid_for(*self._size)

    def grid_for(self, height: int, width: int) -> Grid:
        """Return the grid of an input size in pixels.

        Raises:
            VisionError: The family cannot take the size.
        """
        if (height, width) not in self._grids:
            self._grids[height, width] = self._make_grid(height, width)
        return self._grids[height, width]

    def encode(self, frames: Sequence[FrameInput]) -> list[FrameTokens]:
        """Encode the kept groups of each frame into tokens, on the tower's device. Frames may differ in size
        and camera.

        Raises:
            VisionError: The pixels or the mask of a frame do not fit the grid; the message says which frame.
        """
        grids = [self._check(i, frame) for i, frame in enumerate(frames)]
        # Stock layers do not accept an empty sequence.
        busy = [i for i, frame in enumerate(frames) if frame.keep.any()]
        out = [self._nothing()] * len(frames)
        if not busy:
            return out
        with torch.inference_mode():
            encoded = self._encode([frames[i] for i in busy], [grids[i] for i in busy])
        for i, tokens in zip(busy, encoded, strict=True):
            out[i] = tokens
        return out

    def flops(self, frames: Sequence[FrameInput]) -> int:
        """FLOPs (2 per multiply-add) of the matrix products in `encode(frames)`, without norms."""
        return sum(
            self._flops(self.grid_for(*frame.pixels.shape[1:3]), frame.keep)
            for frame in frames
            if frame.keep.any()
        )

    @abstractmethod
    def _run(self, tensors: Tensors, segments: Sequence[sequences.Sequences]) -> tuple[torch.Tensor, ...]:
        """Run the stock layers on packed rows, within segments."""

    @abstractmethod
    def _vision(self) -> Any: ...

    @abstractmethod
    def _default_size(self) -> tuple[int, int]: ...

    @abstractmethod
    def _make_grid(self, height: int, width: int) -> Grid: ...

    @abstractmethod
    def _encode(self, frames: Sequence[FrameInput], grids: Sequence[Grid]) -> list[FrameTokens]:
        """Encode frames that each keep at least one group."""

    @abstractmethod
    def _flops(self, grid: Grid, keep: Mask) -> int: ...

    def _nothing(self) -> FrameTokens:
        grid = self.grid
        tokens = torch.empty(0, grid.hidden, dtype=self.dtype, device=self.device)
        if not grid.deepstack:
            return FrameTokens(tokens)
        return FrameTokens(tokens, tokens.new_empty(grid.deepstack, 0, grid.hidden))

    def _check(self, position: int, frame: FrameInput) -> Grid:
        shape = frame.pixels.shape
        if len(shape) != 4 or shape[3] != 3 or frame.pixels.dtype != np.uint8:
            raise VisionError(
                f"frame {position}: pixels must be uint8 [t, height, width, 3], "
                f"got {frame.pixels.dtype} {list(shape)}"
            )
        grid = self.grid_for(shape[1], shape[2])
        if shape[0] not in (1, grid.temporal):
            raise VisionError(
                f"frame {position}: {self.family} takes {grid.temporal} frames per temporal patch, "
                f"or one still, not {shape[0]}"
            )
        wanted = (grid.group_rows, grid.group_cols)
        if frame.keep.shape != wanted or frame.keep.dtype != np.bool_:
            raise VisionError(
                f"frame {position}: the keep mask must be bool {list(wanted)} "
                f"for {shape[1]}x{shape[2]} pixels, got {frame.keep.dtype} {list(frame.keep.shape)}"
            )
        return grid

    def _refuse_size(self, height: int, width: int, rule: str) -> VisionError:
        return VisionError(f"{self.family} cannot take an input of {height}x{width} pixels: {rule}")
