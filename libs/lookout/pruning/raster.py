"""Maps prediction blocks to cells of the coded picture, and cells to patches of the model's input, without
Python loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookout.video.motion import Geometry, PredictionBlocks

F32 = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

# Positions are float32, so an overlap thinner than this many pixels counts as a rounding error.
SLIVER = 1e-2


@dataclass(frozen=True, slots=True)
class Cells:
    """A grid of square cells over the coded picture; the last row and column may extend beyond it."""

    width: int
    height: int
    size: int

    @property
    def rows(self) -> int:
        """Number of cell rows."""
        return -(-self.height // self.size)

    @property
    def cols(self) -> int:
        """Number of cell columns."""
        return -(-self.width // self.size)

    def boxes(self) -> tuple[F32, F32, F32, F32]:
        """Return (x, y, w, h) of every cell in coded pixels, row-major, clipped at the picture's edge;
        float32 [rows * cols]."""
        x = np.tile(np.arange(self.cols, dtype=np.float32) * self.size, self.rows)
        y = np.repeat(np.arange(self.rows, dtype=np.float32) * self.size, self.cols)
        return x, y, np.minimum(self.width - x, self.size), np.minimum(self.height - y, self.size)


@dataclass(frozen=True, slots=True)
class Cover:
    """Overlaps of blocks and cells: parallel arrays with one entry per overlapping pair.

    cell: flat cell index; block: index into the block map; area: overlap in pixels (float32).
    """

    cell: Index
    block: Index
    area: F32


def expand(start: Index, count: Index) -> tuple[Index, Index]:
    """Return (range's index, value) for every member of the ranges [start, start + count), range by range."""
    owner = np.repeat(np.arange(start.size), count)
    first = np.cumsum(count) - count
    return owner, np.arange(owner.size) - first[owner] + start[owner]


def cover(blocks: PredictionBlocks, cells: Cells) -> Cover:
    """Return the cells that every block covers; parts of blocks outside the picture are cut off."""
    simple = _aligned(blocks, cells)
    if simple is not None:
        return simple
    x0, y0 = np.maximum(blocks.x.astype(np.intp), 0), np.maximum(blocks.y.astype(np.intp), 0)
    x1 = np.minimum(blocks.x.astype(np.intp) + blocks.w, cells.width)
    y1 = np.minimum(blocks.y.astype(np.intp) + blocks.h, cells.height)
    inside = (x1 > x0) & (y1 > y0)
    c0, r0 = x0 // cells.size, y0 // cells.size
    nc = np.where(inside, (x1 - 1) // cells.size - c0 + 1, 0)
    nr = np.where(inside, (y1 - 1) // cells.size - r0 + 1, 0)
    block, nth = expand(np.zeros(len(blocks), np.intp), nr * nc)
    row, col = r0[block] + nth // nc[block], c0[block] + nth % nc[block]
    left, top = col * cells.size, row * cells.size
    across = np.minimum(x1[block], left + cells.size) - np.maximum(x0[block], left)
    down = np.minimum(y1[block], top + cells.size) - np.maximum(y0[block], top)
    return Cover(row * cells.cols + col, block, (across * down).astype(np.float32))


def _aligned(blocks: PredictionBlocks, cells: Cells) -> Cover | None:
    """Return the cover if every block lies within one cell, as in H.264's macroblocks; else None."""
    if not len(blocks):
        return None
    left, top = blocks.x.astype(np.int32), blocks.y.astype(np.int32)
    right = np.minimum(left + blocks.w, cells.width) - 1
    bottom = np.minimum(top + blocks.h, cells.height) - 1
    if left.min() < 0 or top.min() < 0 or (right < left).any() or (bottom < top).any():
        return None
    col, row = left // cells.size, top // cells.size
    if (col != right // cells.size).any() or (row != bottom // cells.size).any():
        return None
    area = (right - left + 1) * (bottom - top + 1)
    return Cover((row * cells.cols + col).astype(np.intp), np.arange(len(blocks)), area.astype(np.float32))


@dataclass(frozen=True, slots=True)
class PatchMap:
    """The patches that each cell touches under a geometry: pairs (cell, patch) of flat indices."""

    cell: Index
    patch: Index
    rows: int
    cols: int

    @classmethod
    def of(cls, geometry: Geometry, cells: Cells, rows: int, cols: int, patch: int) -> PatchMap:
        """Map `cells` onto `rows` x `cols` patches of `patch` pixels; others touch nothing."""
        left, top = geometry.place[:2]
        right, bottom = left + geometry.place[2], top + geometry.place[3]
        box = geometry.boxes(*cells.boxes())
        x0, x1 = np.maximum(box[0], left) + SLIVER, np.minimum(box[2], right) - SLIVER
        y0, y1 = np.maximum(box[1], top) + SLIVER, np.minimum(box[3], bottom) - SLIVER
        c0, c1 = np.floor(x0 / patch).astype(np.intp), np.floor(x1 / patch).astype(np.intp)
        r0, r1 = np.floor(y0 / patch).astype(np.intp), np.floor(y1 / patch).astype(np.intp)
        c0, r0 = np.maximum(c0, 0), np.maximum(r0, 0)
        c1, r1 = np.minimum(c1, cols - 1), np.minimum(r1, rows - 1)
        inside = (x1 > x0) & (y1 > y0) & (c1 >= c0) & (r1 >= r0)
        nc, nr = np.where(inside, c1 - c0 + 1, 0), np.where(inside, r1 - r0 + 1, 0)
        cell, nth = expand(np.zeros(x0.size, np.intp), nr * nc)
        row, col = r0[cell] + nth // nc[cell], c0[cell] + nth % nc[cell]
        return cls(cell, row * cols + col, rows, cols)

    def largest(self, field: F32) -> F32:
        """Return for each patch the largest value of the cells that touch it; 0 if no cell does: [n, rows,
        cols] of cells -> [n, rows, cols] of patches."""
        out = np.zeros((len(field), self.rows * self.cols), np.float32)
        # `reduceat` reduces runs, so pairs are sorted by patch.
        order = np.argsort(self.patch, kind="stable")
        patch, starts = np.unique(self.patch[order], return_index=True)
        if len(patch):
            values = field.reshape(len(field), -1)[:, self.cell[order]]
            out[:, patch] = np.maximum.reduceat(values, starts, axis=1)
        return out.reshape(-1, self.rows, self.cols)
