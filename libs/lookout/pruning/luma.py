"""Luma differences on the patch grid: the fallback if there are no vectors, and the reference in
benchmarks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lookout.video.motion.grids import GroupedPatches

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def luma(pixels: U8) -> U8:
    """Return BT.601 luma of RGB pixels: uint8 [..., 3] -> uint8 [...], in integer arithmetic, so that every
    machine gives the same result."""
    r, g, b = (pixels[..., i].astype(np.uint16) for i in range(3))
    # 0.299, 0.587 and 0.114 times 256, rounded; they add up to 256, so that white stays 255.
    return ((77 * r + 150 * g + 29 * b) >> 8).astype(np.uint8)


def patch_difference(a: U8, b: U8, grid: GroupedPatches) -> F32:
    """Return how much two luma pictures differ on each patch, in grey levels: float32 [rows, cols].

    a, b: uint8 [height, width] of the model's input. A 3x3 mean smooths both against sensor noise. The value
    of a patch is the mean absolute difference of its most different quarter, so that a small change counts as
    much as one that fills the patch.
    """
    height, width = grid.rows * grid.patch, grid.cols * grid.patch
    if a.shape != b.shape or a.shape[0] < height or a.shape[1] < width:
        raise ValueError(f"pictures of {a.shape} and {b.shape}: both must be at least {(height, width)}")
    # Smoothing is linear, so the difference is smoothed instead of both pictures.
    change = _box_sum(a.astype(np.int16) - b)[:height, :width]
    np.abs(change, out=change)
    # The edges of quarters; in an odd patch, the second half is the larger one.
    half = max(1, grid.patch // 2)
    down, across = (
        np.unique([side * grid.patch + at % grid.patch for side in range(count) for at in (0, half)])
        for count in (grid.rows, grid.cols)
    )
    sums = np.add.reduceat(np.add.reduceat(change, down, axis=0, dtype=np.int32), across, axis=1)
    sizes = 9 * np.diff(down, append=height)[:, None] * np.diff(across, append=width)
    quarters = (sums / sizes.astype(np.float32)).astype(np.float32)
    return np.asarray(
        quarters.reshape(grid.rows, len(down) // grid.rows, grid.cols, -1).max(axis=(1, 3)), np.float32
    )


def _box_sum(change: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Return sums over 3x3 neighbours, with the border repeated: int16 [height, width], exact for |change| <=
    255."""
    wide = np.pad(change, 1, mode="edge")
    rows = wide[:-2] + wide[1:-1]
    rows += wide[2:]
    out = rows[:, :-2] + rows[:, 1:-1]
    out += rows[:, 2:]
    return np.asarray(out, np.int16)


def patch_luma(picture: U8, grid: GroupedPatches) -> U8:
    """Return the mean luma of each patch: uint8 [height, width] -> uint8 [rows, cols]."""
    cut = picture[: grid.rows * grid.patch, : grid.cols * grid.patch].astype(np.float32)
    tiles = cut.reshape(grid.rows, grid.patch, grid.cols, grid.patch)
    return np.asarray(np.rint(tiles.mean(axis=(1, 3))), np.uint8)
