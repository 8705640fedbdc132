"""Applies privacy masks: turns polygons into hidden pixels, and sets motion in hidden areas to zero.

Points are fractions of the whole upright picture, (0, 0) its top left corner. A pixel that a polygon touches
is hidden along with its neighbours, so that rounding never uncovers anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lookout.video.motion.geometry import Geometry
from lookout.video.motion.types import PredictionBlocks, PredictionKind, VectorSource

Bits = npt.NDArray[np.bool_]
Polygon = tuple[tuple[float, float], ...]

_MACROBLOCK: Final = 16  # pixels
_MACROBLOCK_CODECS: Final = frozenset({"h264", "mpeg4", "mpeg2video", "mpeg1video"})
_LARGEST_BLOCK: Final = 64  # of other codecs


@dataclass(frozen=True, slots=True)
class MaskLayer:
    """Polygons whose inside is hidden, and polygons outside of which everything is hidden.

    Attributes:
        hide: Polygons whose inside is hidden, even where a polygon crosses itself.
        keep: If there are any, only pixels inside at least one of these polygons are shown.

    Raises:
        ValueError: A polygon has fewer than three points, or a point outside the picture.
    """

    hide: tuple[Polygon, ...] = ()
    keep: tuple[Polygon, ...] = ()

    def __post_init__(self) -> None:
        for polygon in (*self.hide, *self.keep):
            if len(set(polygon)) < 3:
                raise ValueError(f"a polygon needs at least three different points, not {len(set(polygon))}")
            for point in polygon:
                if not all(math.isfinite(share) and 0 <= share <= 1 for share in point):
                    raise ValueError(
                        f"the point {point} lies outside the picture: coordinates are fractions from 0 to 1"
                    )


#: hides everything
WHOLE: Final = MaskLayer(hide=(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)),))


@dataclass(frozen=True, slots=True)
class PictureMask:
    """The hidden part of a picture: everything that any of the layers hides."""

    layers: tuple[MaskLayer, ...] = ()

    def hidden(self, geometry: Geometry) -> Bits:
        """Return the hidden pixels of a coded picture: bool [height, width]."""
        return _coded(self, geometry.width, geometry.height, geometry.rotation, geometry.mirror)

    def still(self, source: VectorSource, geometry: Geometry, codec: str) -> VectorSource | None:
        """Return a frame's motion in which all hidden squares are still.

        The squares have the size of the codec's largest block. If any pixel of a square is hidden, the whole
        square counts as hidden, because an encoder's choice of blocks in the rest of it depends on the hidden
        part. Blocks that touch a hidden square are omitted.

        Args:
            source: Motion of the frame.
            geometry: Geometry of the coded picture.
            codec: Codec of the blocks.

        Returns:
            The motion; None if no block remains, as if the frame had no motion vectors.
        """
        side = _MACROBLOCK if codec in _MACROBLOCK_CODECS else _LARGEST_BLOCK
        squares, sums = _squares(self, geometry, side)
        rows, columns = squares.shape
        blocks = source.blocks()
        left, top = np.clip(blocks.x // side, 0, columns), np.clip(blocks.y // side, 0, rows)
        right = np.clip((blocks.x + blocks.w - 1) // side + 1, 0, columns)
        bottom = np.clip((blocks.y + blocks.h - 1) // side + 1, 0, rows)
        touched = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        outside = blocks.take(touched <= 0)
        return _with_still(outside, squares, side) if len(outside) else None


def _with_still(blocks: PredictionBlocks, squares: Bits, side: int) -> PredictionBlocks:
    """Return the blocks, plus a block without motion for each hidden square."""
    rows, columns = np.nonzero(squares)
    size = np.full(len(rows), side, np.int16)
    none = np.zeros(len(rows), np.float32)
    still = (
        (columns * side).astype(np.int16),
        (rows * side).astype(np.int16),
        size,
        size,
        none,
        none,
        np.full(len(rows), PredictionKind.SKIP, np.uint8),
        np.full(len(rows), -1, np.int8),
    )
    own = (blocks.x, blocks.y, blocks.w, blocks.h, blocks.dx, blocks.dy, blocks.kind, blocks.source)
    return PredictionBlocks(*(np.concatenate(pair) for pair in zip(own, still, strict=True)))  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def _squares(mask: PictureMask, geometry: Geometry, side: int) -> tuple[Bits, npt.NDArray[np.int64]]:
    """Return hidden squares, bool [rows, columns], and their two-dimensional prefix sums, int64
    [rows + 1, columns + 1]."""
    hidden = mask.hidden(geometry)
    height, width = hidden.shape
    padded = np.pad(hidden, ((0, -height % side), (0, -width % side)))
    cells = padded.reshape(-(-height // side), side, -(-width // side), side)
    squares = np.asarray(cells.any(axis=(1, 3)), np.bool_)
    return squares, np.pad(squares.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))


@lru_cache(maxsize=32)
def _coded(mask: PictureMask, width: int, height: int, rotation: int, mirror: bool) -> Bits:
    upright = (height, width) if rotation in (90, 270) else (width, height)
    hidden = np.rot90(hidden_pixels(mask, *upright), rotation // 90)
    hidden = np.ascontiguousarray(hidden[:, ::-1] if mirror else hidden)
    hidden.setflags(write=False)
    return hidden


def hidden_pixels(mask: PictureMask, width: int, height: int) -> Bits:
    """Return the hidden pixels of an upright picture: bool [height, width]."""
    hidden = np.zeros((height, width), np.bool_)
    for layer in mask.layers:
        for polygon in layer.hide:
            winding, edge = _drawn(polygon, width, height)
            hidden |= (winding != 0) | edge
        if layer.keep:
            shown = np.zeros_like(hidden)
            for polygon in layer.keep:
                # By the even-odd rule, parts count as outside where a polygon crosses itself.
                winding, edge = _drawn(polygon, width, height)
                shown |= ((winding & 1) != 0) & ~edge
            hidden |= ~shown
    return hidden


def _drawn(polygon: Polygon, width: int, height: int) -> tuple[npt.NDArray[np.int16], Bits]:
    """Rasterise a polygon. Return its winding number at each pixel's centre, and the pixels at its edges and
    next to them, both [height, width]."""
    points = np.array(polygon, np.float64) * (width, height)
    turns = np.zeros((height, width + 1), np.int16)
    edge = np.zeros((height + 2, width + 2), np.bool_)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
        low, high = sorted((y0, y1))
        rows = np.arange(max(0, math.ceil(low - 0.5)), min(height, math.ceil(high - 0.5)))
        if len(rows):
            x = x0 + (rows + 0.5 - y0) * ((x1 - x0) / (y1 - y0))
            turns[rows, np.clip(np.ceil(x - 0.5), 0, width).astype(int)] += 1 if y1 > y0 else -1
        along = np.linspace(0, 1, 2 * math.ceil(max(abs(x1 - x0), abs(y1 - y0))) + 2)
        xs = np.minimum(x0 + along * (x1 - x0), width - 1).astype(int)
        ys = np.minimum(y0 + along * (y1 - y0), height - 1).astype(int)
        edge[ys + 1, xs + 1] = True
    wide = edge[:-2] | edge[1:-1] | edge[2:]
    return turns.cumsum(axis=1, dtype=np.int16)[:, :-1], wide[:, :-2] | wide[:, 1:-1] | wide[:, 2:]
