"""Measures R, the part of the picture that motion compensation does not explain (CodecSight 3.3.1, Eq. 2),
per patch instead of per block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lookout.video.motion import Geometry, Luma

if TYPE_CHECKING:
    import torch

F32 = npt.NDArray[np.float32]


def compensated_difference(luma: Luma, before: Luma, dx: F32, dy: F32, cell: int) -> F32 | torch.Tensor:
    """Return |luma - displaced before|, float32 [height, width], on the pictures' device.

    luma, before: uint8 [height, width], the sampled frame and the previously sampled one; dx, dy: float32
    [cell rows, cell cols], displacement of each cell towards its reference in pixels (rounded to whole
    pixels; beyond the picture, its edge is repeated, as codecs do).
    """
    height, width = luma.shape
    if before.shape != luma.shape:
        raise ValueError(f"pictures of {luma.shape} and {before.shape} cannot be compared")
    if not isinstance(luma, np.ndarray) or not isinstance(before, np.ndarray):
        return _on_device(luma, before, dx, dy, cell)
    row, col = np.arange(height, dtype=np.int32), np.arange(width, dtype=np.int32)
    own = np.ix_(row // cell, col // cell)
    y = np.clip(row[:, None] + np.rint(dy).astype(np.int32)[own], 0, height - 1)
    x = np.clip(col[None, :] + np.rint(dx).astype(np.int32)[own], 0, width - 1)
    gap: F32 = np.abs(luma.astype(np.float32) - before[y, x])
    return gap


def _on_device(luma: Luma, before: Luma, dx: F32, dy: F32, cell: int) -> torch.Tensor:
    """As `compensated_difference`, with tensors; only the displacements of cells are uploaded."""
    import torch

    now, then = torch.as_tensor(luma), torch.as_tensor(before)
    height, width = now.shape
    row, col = (torch.arange(size, device=now.device) for size in (height, width))
    down, across = (
        torch.from_numpy(np.rint(moved).astype(np.int32)).to(now.device)[row // cell][:, col // cell]
        for moved in (dy, dx)
    )
    y, x = (row[:, None] + down).clamp(0, height - 1), (col[None] + across).clamp(0, width - 1)
    return (now.float() - then[y, x].float()).abs()


def patch_means(values: F32 | torch.Tensor, geometry: Geometry, rows: int, cols: int, patch: int) -> F32:
    """Return the mean of a field on the coded picture over each patch: float32 [height, width] -> float32
    [rows, cols].

    A pixel belongs to the patch that contains its centre. A patch without pixels (letterbox, or a picture
    with fewer pixels than patches) has the mean 0.
    """
    height, width = values.shape
    x, y = np.arange(width, dtype=np.float32) + 0.5, np.arange(height, dtype=np.float32) + 0.5
    across, down = geometry.points(x, np.full_like(x, 0.5)), geometry.points(np.full_like(y, 0.5), y)
    turned = geometry.rotation in (90, 270)
    # After a quarter turn, columns of the picture are rows of patches.
    by_col = _members(across[1] if turned else across[0], geometry, rows if turned else cols, patch, turned)
    by_row = _members(down[0] if turned else down[1], geometry, cols if turned else rows, patch, not turned)
    if isinstance(values, np.ndarray):
        total = by_row @ values @ by_col.T
    else:  # only the sums are downloaded; in float64, because a GPU may round float32 products
        rows_of, cols_of = (values.new_tensor(member).double() for member in (by_row, by_col))
        total = (rows_of @ values.double() @ cols_of.T).cpu().numpy()
    count = np.outer(by_row.sum(axis=1), by_col.sum(axis=1))
    mean = np.where(count > 0, total / np.maximum(count, 1), 0).astype(np.float32)
    return np.ascontiguousarray(mean.T if turned else mean)


def _members(position: F32, geometry: Geometry, patches: int, patch: int, vertical: bool) -> F32:
    """Return one-hot float32 [patches, pixels]: which patch along one axis contains each position."""
    start = geometry.place[1] if vertical else geometry.place[0]
    size = geometry.place[3] if vertical else geometry.place[2]
    at = np.floor(position / patch).astype(np.intp)
    inside = (position >= start) & (position < start + size)
    member = (at[None, :] == np.arange(patches)[:, None]) & inside[None, :]
    return np.asarray(member, np.float32)
