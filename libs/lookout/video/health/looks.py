"""Sampled pictures as small planes of brightness and detail."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

#: cells of a plane in each direction
CELLS = 16
#: grey levels of detail that one step of a reference stands for
DETAIL_STEP = 0.25
_ROWS = 112


@dataclass(frozen=True, slots=True)
class Looks:
    """The samples of one segment.

    Attributes:
        luma: float32 [n, CELLS, CELLS]: mean brightness of each cell, 0 to 255.
        detail: float32 [n, CELLS, CELLS]: mean difference of neighbouring pixels in each cell, grey levels.
        checksums: CRC-32C of each sample's pixels: equal pictures have equal ones.
    """

    luma: F32
    detail: F32
    checksums: tuple[int, ...]

    @property
    def change(self) -> float | None:
        """Mean change of brightness from sample to sample, grey levels; None: there is only one.

        The median of the pairs: a keyframe changes the picture a little, whatever it shows.
        """
        if len(self.luma) < 2:
            return None
        return float(np.median(np.abs(np.diff(self.luma, axis=0)).mean(axis=(1, 2))))

    @property
    def middle(self) -> tuple[F32, F32]:
        """Brightness and detail of the segment: the median of its samples in each cell."""
        return np.median(self.luma, axis=0), np.median(self.detail, axis=0)


#: of a segment without samples
NO_LOOKS = Looks(np.zeros((0, CELLS, CELLS), np.float32), np.zeros((0, CELLS, CELLS), np.float32), ())


def look_at(pixels: U8) -> Looks:
    """Reduce sampled pictures to planes.

    Green stands for luma, of which it is the largest part: it needs no conversion. About `_ROWS` pairs of
    rows are read, whatever the size.

    Args:
        pixels: uint8 [n, height, width, 3], RGB, at model-input size.
    """
    if not len(pixels):
        return NO_LOOKS
    step = max(2, pixels.shape[1] // _ROWS)
    lower = np.ascontiguousarray(pixels[:, 1::step, :, 1])
    upper = np.ascontiguousarray(pixels[:, ::step, :, 1][:, : lower.shape[1]])
    detail = np.zeros(upper.shape, np.uint8)
    detail[..., 1:] = _difference(upper[..., 1:], upper[..., :-1])
    # The larger of both directions: an edge in either is detail.
    np.maximum(detail, _difference(upper, lower), out=detail)
    checksums = tuple(google_crc32c.value(np.ascontiguousarray(sample).tobytes()) for sample in pixels)
    return Looks(_cells(upper), _cells(detail), checksums)


def _difference(one: U8, other: U8) -> U8:
    difference: U8 = np.maximum(one, other) - np.minimum(one, other)
    return difference


def _cells(planes: U8) -> F32:
    """Means over cells; rows and columns that do not fill the last cells are left out."""
    count, height, width = planes.shape
    rows, cols = max(1, height // CELLS), max(1, width // CELLS)
    if height < CELLS or width < CELLS:
        planes = planes.repeat(-(-CELLS // height), axis=1).repeat(-(-CELLS // width), axis=2)
    cropped = planes[:, : rows * CELLS, : cols * CELLS]
    # Columns first: sums of uint8 along the last axis are the fastest that numpy has.
    sums = cropped.reshape(count, rows * CELLS, CELLS, cols).sum(axis=3, dtype=np.uint32)
    sums = sums.reshape(count, CELLS, rows, CELLS).sum(axis=2)
    means: F32 = (sums / np.float32(rows * cols)).astype(np.float32)
    return means
