"""Scaling and colour conversion of decoded planes as torch operations, on whatever device holds them.

`Painter` converts pictures on the host with FFmpeg's libswscale. Here are its definitions (area averaging
when shrinking, linear interpolation when enlarging, its fixed-point steps) in integers, so that both give the
same bytes, whichever device computes. `tests/unit/video/segments/test_surface.py` compares the two.

The steps: each plane is filtered along its rows (weights of 14 bits, results of 15), then along its columns
(weights of 12 bits). Colour has half the columns of an output of even width, unless the source has as much
colour as luma; an odd width has a colour for each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

I64 = npt.NDArray[np.int64]
Planes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_ACROSS, _DOWN = 14, 12  # bits of weights
_CENTRED, _LEFT = 128, 64  # where colour samples lie between pixels, in 1/256 of a colour sample
_DROPPED: Final = 0.002  # share of a pixel's weight that may be left out at either end
#: V to red, U to blue, U to green, V to green, in 1/65536 for limited range, by FFmpeg's number of the space
_SPACES: Final = {
    1: (117489, 138438, 13975, 34925),  # BT.709
    4: (104448, 132798, 24759, 53109),  # FCC
    5: (104597, 132201, 25675, 53279),  # BT.601, also where none is named
    7: (117579, 136230, 16907, 35559),  # SMPTE 240M
    9: (110013, 140363, 12277, 42626),  # BT.2020
}
_SAME: Final = {0: 1, 10: 9}


@dataclass(frozen=True, slots=True)
class Colour:
    """How samples encode colours: FFmpeg's number of the space; whether the range is 0 to 255; whether
    colour samples lie at the left of two pixels, else between them."""

    space: int = 2
    full: bool = False
    left_sited: bool = False

    def matrix(self) -> tuple[int, int, int, int, int, int]:
        """Return the factors of luma, V to red, U to blue, U and V to green, in 1/65536, and the level of
        black."""
        space = _SAME.get(self.space, self.space)
        red, blue, green_u, green_v = _SPACES.get(space, _SPACES[5])
        if self.full:
            red, blue, green_u, green_v = (c * 224 // 255 for c in (red, blue, green_u, green_v))
        luma, black = (65536, 0) if self.full else (65536 * 255 // 219, 16)
        return luma, red, blue, -green_u, -green_v, black


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """An axis of a scaled picture: output pixel i is the sum of `taps[i, k]` x input `first[i] + k`."""

    first: I64
    taps: I64

    def along(self, plane: torch.Tensor, axis: int) -> torch.Tensor:
        """Return int32 sums along an axis of an int32 plane."""
        first = torch.from_numpy(self.first).to(plane.device)
        taps = torch.from_numpy(self.taps.astype(np.int32)).to(plane.device)
        total: torch.Tensor | None = None
        for k in range(taps.shape[1]):
            weight = taps[:, k, None] if axis == 0 else taps[:, k]
            part = plane.index_select(axis, first + k) * weight
            total = part if total is None else total + part
        assert total is not None
        return total


@lru_cache(maxsize=64)
def weights(source: int, target: int, bits: int, place: int = _CENTRED) -> Weights:
    """Return the weights that scale `source` pixels to `target`.

    bits: the weights of an output pixel add up to 2 ** bits; place: where the samples lie, `_CENTRED` or
    `_LEFT`.
    """
    step = ((source << 16) + (target >> 1)) // target
    if abs(step - 65536) < 10 and place == _CENTRED:
        return Weights(np.arange(target), np.full((target, 1), 1 << bits))
    unit = 1 << (54 - min((source // target).bit_length() - 1 if source >= target else 0, 8))
    number = np.arange(target, dtype=np.int64)
    if step <= 65536:  # linear interpolation; positions in 1/65536 pixel
        at = (step >> 1) - (place << 8) + number * step
        first = at >> 16
        share = unit - np.abs(((first[:, None] + np.arange(2)) << 16) - at[:, None]) * (unit >> 16)
        raw = np.maximum(share, 0)
    else:  # the share of each source pixel that the output pixel covers; positions in 1/131072 pixel
        count = max(min(1 + (source + target - 1) // target, source - 2), 1)
        at = step - (place << 9) + number * 2 * step
        first = _toward_zero(at - ((count - 2) << 16), 1 << 17)
        away = (np.abs(((first[:, None] + np.arange(count)) << 17) - at[:, None]) << 13) * target // source
        covered = np.clip((1 << 45) - (away - (1 << 29)) * step, 0, 1 << 46)
        raw = covered * (unit >> 46)
    first, raw = _shortened(first, raw, _DROPPED * unit)
    return Weights(*_normalised(first, raw, source, 1 << bits))


def _toward_zero(value: I64, divisor: int) -> I64:
    return np.where(value >= 0, value // divisor, -(-value // divisor))


def _shortened(first: I64, raw: I64, limit: float) -> tuple[I64, I64]:
    """Drop negligible weights at both ends; all output pixels keep the same number of weights."""
    first, raw, longest = first.copy(), raw.copy(), 1
    for i in range(len(raw) - 1, -1, -1):
        dropped = 0
        for _ in range(raw.shape[1]):
            dropped += raw[i, 0]
            if dropped > limit or (i < len(raw) - 1 and first[i] >= first[i + 1]):  # positions never go back
                break
            raw[i] = np.append(raw[i, 1:], 0)
            first[i] += 1
        small = np.cumsum(raw[i, :0:-1]) <= limit
        longest = max(longest, raw.shape[1] - int(small.cumprod().sum()))
    return first, raw[:, :longest]


def _normalised(first: I64, raw: I64, source: int, one: int) -> tuple[I64, I64]:
    """Move weights beyond the edges to the pixels at the edge, and round so that each sum is exactly one."""
    count = raw.shape[1]
    begin, rows = np.clip(first, 0, max(source - count, 0)), np.arange(len(raw))
    inside = np.zeros_like(raw)
    for k in range(count):
        np.add.at(inside, (rows, np.clip(first + k, 0, source - 1) - begin), raw[:, k])
    unit = (inside.sum(axis=1) + one // 2) // one
    taps, carry = np.zeros_like(raw), np.zeros(len(raw), np.int64)
    for k in range(count):
        value = inside[:, k] + carry
        taps[:, k] = np.sign(value) * ((np.abs(value) + (unit >> 1)) // unit)
        carry = value - taps[:, k] * unit
    return begin, taps


def to_rgb(planes: Planes, size: tuple[int, int], depth: int, colour: Colour) -> torch.Tensor:
    """Scale planes and convert them to RGB.

    Args:
        planes: Y, U and V, unsigned integers [height, width] of `depth` bits each; U and V may be smaller.
        size: (width, height) of the result.
        depth: Bits of a sample.
        colour: How samples encode colours.

    Returns:
        uint8 [height, width, 3] on the planes' device.
    """
    width, height = size
    source = [plane.to(torch.int32) for plane in planes]
    rows, cols = source[0].shape
    if (cols, rows) == size and depth == 8 and not rows & 1 and source[1].shape[1] < cols:
        return _unscaled(source, colour)
    full = bool(width & 1) or source[1].shape == source[0].shape
    place = _LEFT if colour.left_sited and source[1].shape[1] < cols else _CENTRED
    shift = 7 if depth == 8 else depth - 1
    downs, sums = [], []
    for index, plane in enumerate(source):
        across = width if not index or full else width // 2
        rowwise = weights(plane.shape[1], across, _ACROSS, place if index else _CENTRED)
        down = weights(plane.shape[0], height, _DOWN)
        sums.append(down.along((rowwise.along(plane, 1) >> shift).clamp(max=32767), 0))
        downs.append(down.taps.shape[1])
    rounded = downs != [2, 2, 2]  # libswscale has a function for two weights; it does not round
    return _converted_fully(sums, rounded, colour) if full else _converted(sums, rounded, colour)


def _converted(sums: Sequence[torch.Tensor], rounded: bool, colour: Colour) -> torch.Tensor:
    """Convert 27-bit Y, U and V sums to RGB when U and V have half as many columns as Y.

    As in libswscale, each sum is first rounded or cut to 8 bits, and the share of colour in a channel is
    added to Y as a whole number of luma steps.
    """
    luma, red, blue, green_u, green_v, black = colour.matrix()
    y, u, v = ((s + (rounded << 18)) >> 19 for s in sums)
    u, v = (plane.clamp(0, 255).repeat_interleave(2, dim=1) for plane in (u, v))

    def moved(plane: torch.Tensor, factor: int) -> torch.Tensor:
        scaled = int((factor * 65536 + 32768) / luma)  # in steps of luma
        return (plane * scaled >> 16) - (scaled >> 9)

    def to_byte(level: torch.Tensor) -> torch.Tensor:
        """Return the entries of libswscale's luma table; the one for luma 0 is at index `zero`."""
        zero = 384 if colour.full else 326
        scaled = (level + zero) * luma - ((384 + black) << 16)  # 16 fractional bits
        return ((scaled + (1 << 15)) >> 16).clamp(0, 255).to(torch.uint8)

    channels = (moved(v, red), moved(u, green_u) + moved(v, green_v), moved(u, blue))
    return torch.stack([to_byte(y + channel) for channel in channels], dim=-1)


def _converted_fully(sums: Sequence[torch.Tensor], rounded: bool, colour: Colour) -> torch.Tensor:
    """Convert 27-bit Y, U and V sums to RGB when every pixel has its own U and V. Sums keep 17 bits until the
    result is cut to 8."""
    luma, red, blue, green_u, green_v = (_13_bits(factor) for factor in colour.matrix()[:5])
    # For colours outside any valid picture, libswscale's 32-bit sums overflow; these int32 sums overflow
    # alike.
    y, u, v = ((s + (rounded << 9) >> 10) for s in sums)
    u, v = u - (1 << 16), v - (1 << 16)
    y = (y - (colour.matrix()[5] << 9)) * luma + (1 << 21)
    channels = (y + v * red, y + v * green_v + u * green_u, y + u * blue)
    return torch.stack([(c.clamp(0, (1 << 30) - 1) >> 22).to(torch.uint8) for c in channels], dim=-1)


def _unscaled(planes: Sequence[torch.Tensor], colour: Colour) -> torch.Tensor:
    """Convert 8-bit planes to RGB when Y already has the size of the result. U and V samples are repeated to
    that size."""
    luma, red, blue, green_u, green_v = (_13_bits(factor) for factor in colour.matrix()[:5])
    rows, cols = planes[0].shape
    down, across = rows // planes[1].shape[0], -(-cols // planes[1].shape[1])
    u, v = (p.repeat_interleave(down, 0).repeat_interleave(across, 1)[:rows, :cols] for p in planes[1:])
    u, v = (u - 128) * 8, (v - 128) * 8
    y = (planes[0] - colour.matrix()[5]) * 8 * luma >> 16
    channels = (y + (v * red >> 16), y + (u * green_u >> 16) + (v * green_v >> 16), y + (u * blue >> 16))
    return torch.stack([c.clamp(0, 255).to(torch.uint8) for c in channels], dim=-1)


def _13_bits(factor: int) -> int:
    """Convert a factor to units of 1/8192."""
    return (factor * 8192 + 32768) >> 16
