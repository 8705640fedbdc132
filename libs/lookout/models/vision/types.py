"""The interface of every vision tower: the grid of a frame, frames in, tokens out. It contains no model and
no transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from lookout.errors import LookoutError
from lookout.video.motion.grids import complete, spread

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class VisionError(LookoutError, ValueError):
    """The tower cannot do what was requested: its family is unknown, or an input size or a frame does not
    fit."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The patches and tokens of one model input of `height` x `width` pixels.

    A *group* is the set of patches behind one visual token. `row_taps[r]` are the patch rows that feed group
    row `r`, and `col_taps[c]` the patch columns that feed group column `c`. Families that merge 2x2 patches
    into a token have disjoint taps; LLaVA-OneVision pools an odd grid, and neighbouring tokens share taps.
    """

    rows: int
    cols: int
    patch: int
    temporal: int
    row_taps: tuple[tuple[int, ...], ...]
    col_taps: tuple[tuple[int, ...], ...]
    hidden: int
    deepstack: int = 0
    remainder: tuple[int, int] = (0, 0)  # pixels at the bottom and at the right that no patch covers

    @property
    def height(self) -> int:
        """Height of the model input in pixels."""
        return self.rows * self.patch + self.remainder[0]

    @property
    def width(self) -> int:
        """Width of the model input in pixels."""
        return self.cols * self.patch + self.remainder[1]

    @property
    def group_rows(self) -> int:
        """Rows of visual tokens."""
        return len(self.row_taps)

    @property
    def group_cols(self) -> int:
        """Columns of visual tokens."""
        return len(self.col_taps)

    @property
    def merge(self) -> int:
        """Patches along one side of a group."""
        return max(len(taps) for taps in self.row_taps)

    @property
    def tokens(self) -> int:
        """Visual tokens of a temporal patch with everything kept."""
        return self.group_rows * self.group_cols

    def patches(self, keep: Mask) -> Mask:
        """Return the patches to encode, bool [rows, cols], for kept groups, bool [group_rows, group_cols]."""
        return spread(keep, self)

    def groups(self, dynamic: Mask) -> Mask:
        """Return the groups with any dynamic patch, bool [group_rows, group_cols], for patches, bool [rows,
        cols]."""
        return complete(dynamic, self)


@dataclass(frozen=True, slots=True)
class FrameInput:
    """One temporal patch of one camera.

    `pixels` is uint8 [t, height, width, 3] RGB with t = `Grid.temporal`, or 1 (a still, repeated as the model
    repeats an image); `keep` is bool [group_rows, group_cols].
    """

    pixels: Pixels
    keep: Mask


@dataclass(frozen=True, slots=True)
class FrameTokens:
    """Visual tokens of the kept groups of one `FrameInput`, in row-major order of the group grid.

    `tokens` is [kept, hidden]; `deepstack` is [levels, kept, hidden] for Qwen3-VL and None elsewhere.
    """

    tokens: torch.Tensor
    deepstack: torch.Tensor | None = None


@runtime_checkable
class Tower(Protocol):
    """A vision tower with its projector, run on kept patches only (CodecSight, section 3.2)."""

    @property
    def family(self) -> str:
        """The transformers `model_type`, a key of `lookout.models.families.FAMILIES`."""
        ...

    @property
    def grid(self) -> Grid:
        """The grid of the input size for which the tower was loaded."""
        ...

    def grid_for(self, height: int, width: int) -> Grid:
        """Return the grid of another input size in pixels.

        Raises:
            VisionError: The family cannot take the size.
        """
        ...

    def encode(self, frames: Sequence[FrameInput]) -> list[FrameTokens]:
        """Encode many frames, of any cameras and sizes, in one batch. Each frame gets the same tokens as on
        its own."""
        ...

    def flops(self, frames: Sequence[FrameInput]) -> int:
        """FLOPs (2 per multiply-add) that `encode` spends on these frames."""
        ...
