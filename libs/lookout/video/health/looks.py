"""Reduces sampled pictures to small planes of brightness and detail."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

#: cells of a plane in each direction
CELLS = 16
#: grey levels of detail per step of a reference picture
DETAIL_STEP = 0.25
#: approximate number of row pairs that are read
_ROWS = 32
#: samples over which the median is taken; more would cost more and give the same result
_MIDDLE = 3


@dataclass(frozen=True, slots=True)
class Looks:
    """The samples of one segment.

    Attributes:
        pixels: uint8 [n, height, width, 3], RGB.
        rows: uint8 [n, rows, width]: green values of the rows that were read.
        luma: float32 [n, CELLS, CELLS]: mean brightness of each cell, 0 to 255.
        checksums: CRC-32C of each sample's rows, equal for equal pictures.
    """

    pixels: U8
    rows: U8
    luma: F32
    checksums: tuple[int, ...]

    @property
    def change(self) -> float | None:
        """Mean change of brightness between consecutive samples, grey levels; None for fewer than two.

        It is the median over the pairs, because a keyframe changes the picture a little in any scene.
        """
        if len(self.luma) < 2:
            return None
        changes = np.add.reduce(np.abs(self.luma[1:] - self.luma[:-1]), axis=(1, 2)) / self.luma[0].size
        return float(statistics.median(changes.tolist()))

    def middle(self) -> tuple[F32, F32]:
        """Return the segment's brightness and detail, which are the median of three samples in each cell.

        Returns:
            float32 [CELLS, CELLS] each: mean brightness, 0 to 255, and the mean difference
            between neighbouring pixels, grey levels.
        """
        last = len(self.luma) - 1
        places = sorted({round(part * last / (_MIDDLE - 1)) for part in range(_MIDDLE)})
        lower = np.stack([_rows(self.pixels[place], 1) for place in places])
        upper = self.rows[places, : lower.shape[1]]
        detail = np.zeros(upper.shape, np.uint8)
        detail[..., 1:] = _difference(upper[..., 1:], upper[..., :-1])
        # The larger difference of the two directions, because an edge in either direction is detail.
        np.maximum(detail, _difference(upper, lower), out=detail)
        return _median(self.luma[places]), _median(_cells(detail))


#: the looks of a segment without samples
NO_LOOKS = Looks(
    np.zeros((0, 1, 1, 3), np.uint8),
    np.zeros((0, 1, 1), np.uint8),
    np.zeros((0, CELLS, CELLS), np.float32),
    (),
)


def look_at(pixels: U8) -> Looks:
    """Reduce sampled pictures to planes.

    Green is used instead of luma, of which it is the largest part, to avoid a conversion. About `_ROWS` pairs
    of rows are read, whatever the size.

    Args:
        pixels: uint8 [n, height, width, 3], RGB, at model-input size.
    """
    if not len(pixels):
        return NO_LOOKS
    rows = np.ascontiguousarray(_rows(pixels, 0))
    return Looks(pixels, rows, _cells(rows), tuple(google_crc32c.value(sample.tobytes()) for sample in rows))


def _rows(pixels: U8, first: int) -> U8:
    """Return the green values of about `_ROWS` rows of samples, evenly spaced from row `first`."""
    rows: U8 = pixels[..., first :: max(2, pixels.shape[-3] // _ROWS), :, 1]
    return rows


def _difference(one: U8, other: U8) -> U8:
    difference: U8 = np.maximum(one, other) - np.minimum(one, other)
    return difference


def _median(planes: F32) -> F32:
    """The median of one to three planes."""
    first, last = planes[0], planes[-1]
    if len(planes) < _MIDDLE:
        middle: F32 = (first + last) / 2
    else:
        middle = np.maximum(np.minimum(first, last), np.minimum(np.maximum(first, last), planes[1]))
    return middle


def _cells(planes: U8) -> F32:
    """Return the mean of each cell; rows and columns left over after the last whole cell are ignored."""
    count, height, width = planes.shape
    rows, cols = max(1, height // CELLS), max(1, width // CELLS)
    if height < CELLS or width < CELLS:
        planes = planes.repeat(-(-CELLS // height), axis=1).repeat(-(-CELLS // width), axis=2)
    cropped = planes[:, : rows * CELLS, : cols * CELLS].reshape(count, CELLS, rows, cols * CELLS)
    # Whole rows are added first, in 16 bits if their sum fits. Then a matrix product adds along the rows,
    # which is exact because all sums are below 2 ** 24. NumPy's sums over short axes take twice as long.
    sums = cropped[:, :, 0].astype(np.uint16 if rows <= 257 else np.uint32)
    for row in range(1, rows):
        np.add(sums, cropped[:, :, row], out=sums)
    means: F32 = sums.reshape(-1, cols).astype(np.float32) @ np.full(cols, 1.0, np.float32)
    return means.reshape(count, CELLS, CELLS) / np.float32(rows * cols)
