"""Patch grids, the groups of patches that form visual tokens, and masks over both. All arithmetic on these
masks and their packing into bits is in this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class GroupedPatches(Protocol):
    """The properties of a grid that masks need; `lookout.models.vision.Grid` and `PatchGrid` have them.

    `row_taps[r]` are the patch rows that feed row r of the token grid, `col_taps[c]` the patch columns of
    column c.
    """

    @property
    def rows(self) -> int:
        """Number of patch rows."""

    @property
    def cols(self) -> int:
        """Number of patch columns."""

    @property
    def patch(self) -> int:
        """Pixels along one side of a patch."""

    @property
    def temporal(self) -> int:
        """Frames of one temporal patch."""

    @property
    def row_taps(self) -> tuple[tuple[int, ...], ...]:
        """Patch rows that feed each token row."""

    @property
    def col_taps(self) -> tuple[tuple[int, ...], ...]:
        """Patch columns that feed each token column."""


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Patches of a model input, and the groups of patches that each become one visual token."""

    rows: int
    cols: int
    patch: int
    row_taps: tuple[tuple[int, ...], ...]
    col_taps: tuple[tuple[int, ...], ...]
    temporal: int = 1

    @classmethod
    def merged(cls, rows: int, cols: int, patch: int, merge: int, temporal: int = 1) -> PatchGrid:
        """Return a grid whose tokens merge merge x merge patches: Qwen's 2x2 merger, InternVL's pixel
        shuffle."""
        if merge < 1 or rows % merge or cols % merge:
            raise ValueError(
                f"a grid of {rows}x{cols} patches cannot be divided into groups of {merge}x{merge}"
            )
        return cls(rows, cols, patch, _runs(rows, merge), _runs(cols, merge), temporal)

    @classmethod
    def pooled(cls, rows: int, cols: int, patch: int, group_rows: int, group_cols: int) -> PatchGrid:
        """Return a grid with bilinear pooling to another size (LLaVA-OneVision: 27 -> 14). A token's group
        contains every patch that contributes to the token.
        """
        return cls(rows, cols, patch, bilinear_taps(rows, group_rows), bilinear_taps(cols, group_cols))


def _runs(size: int, merge: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(i, i + merge)) for i in range(0, size, merge))


def bilinear_taps(size: int, out: int) -> tuple[tuple[int, ...], ...]:
    """Return the input positions with weight in each output of `interpolate(mode="bilinear",
    align_corners=False)` along one axis.

    Neighbouring outputs may share a position: 27 -> 14 makes patch 13 feed tokens 6 and 7.
    """
    if not 0 < out <= size:
        raise ValueError(f"cannot pool {size} patches to {out}")
    centre = np.clip((np.arange(out) + 0.5) * (size / out) - 0.5, 0, size - 1)
    low = np.floor(centre).astype(int)
    high = np.minimum(low + 1, size - 1)
    return tuple((int(a),) if c == a else (int(a), int(b)) for a, b, c in zip(low, high, centre, strict=True))


def complete(dynamic: Mask, grid: GroupedPatches) -> Mask:
    """Return the groups to keep: a group is kept if any of its patches is dynamic (CodecSight 3.3.2).

    dynamic: bool [rows, cols] -> bool [group rows, group cols].
    """
    if dynamic.shape != (grid.rows, grid.cols):
        raise ValueError(f"mask of {dynamic.shape} patches does not fit a grid of {(grid.rows, grid.cols)}")
    rows = np.stack([dynamic[list(taps)].any(axis=0) for taps in grid.row_taps])
    return np.stack([rows[:, list(taps)].any(axis=1) for taps in grid.col_taps], axis=1)


def spread(keep: Mask, grid: GroupedPatches) -> Mask:
    """Return the patches to encode for kept groups: bool [group rows, group cols] -> bool [rows, cols]."""
    if keep.shape != (len(grid.row_taps), len(grid.col_taps)):
        raise ValueError(
            f"mask of {keep.shape} groups does not fit a grid of {(len(grid.row_taps), len(grid.col_taps))}"
        )
    rows = np.zeros((grid.rows, keep.shape[1]), np.bool_)
    for r, taps in enumerate(grid.row_taps):
        rows[list(taps)] |= keep[r]
    out = np.zeros((grid.rows, grid.cols), np.bool_)
    for c, taps in enumerate(grid.col_taps):
        out[:, list(taps)] |= rows[:, c, None]
    return out


def pack_mask(mask: Mask) -> bytes:
    """Pack a mask into row-major bits, least significant first (tokens.v1 `keep`)."""
    return np.packbits(mask.ravel(), bitorder="little").tobytes()


def unpack_mask(data: bytes, rows: int, cols: int) -> Mask:
    """Return the mask that `pack_mask` packed.

    Raises:
        ValueError: The number of bytes does not match the mask's size.
    """
    if len(data) != (rows * cols + 7) // 8:
        raise ValueError(f"{len(data)} bytes are not a mask of {rows}x{cols}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=rows * cols, bitorder="little")
    return bits.reshape(rows, cols).astype(np.bool_)
