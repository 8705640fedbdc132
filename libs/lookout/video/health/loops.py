"""Detects looped footage: a recording that replaces the camera's live picture."""

from __future__ import annotations

from typing import Final

import numpy as np

from lookout.video.health.looks import CELLS, F32, U8

#: samples that are remembered: three minutes at two a second
REMEMBERED: Final = 360
#: numbers per sample; more of them make a correlation by chance less likely
NUMBERS: Final = 16
#: samples that must repeat
_REPEATED: Final = 80
#: minimum distance between a moment and its repetition, in samples; people who wave and machines that turn
#: repeat sooner
_MIN_LAG: Final = 20
#: minimum correlation of a repetition; rhythmic movement reaches it briefly, but not for a whole minute
_MIN_CORRELATION: Final = 0.3
#: maximum share of moments that correlate almost as well as the best moment; above this share, the scene
#: itself is periodic
_MAX_NEAR_SHARE: Final = 0.016
# Signs of random projections, so that any movement changes the sums. The seed is fixed, because sums of
# different processes are compared.
_SIGNS: Final = (
    np.where(np.random.default_rng(7).random((NUMBERS, CELLS * CELLS)) < 0.5, -1, 1).astype(np.float32).T
)


def signatures(luma: F32) -> U8:
    """Reduce samples to a few numbers that change as soon as anything moves.

    Args:
        luma: float32 [n, CELLS, CELLS].

    Returns:
        uint8 [n, NUMBERS], modulo 256: only their differences are used.
    """
    sums = luma.reshape(len(luma), -1) @ _SIGNS / 2
    return np.rint(sums).astype(np.int64).astype(np.uint8)  # the cast takes the remainder of 256


def repeats(history: U8) -> bool:
    """Whether the newest samples repeat those of an earlier moment.

    Changes are compared instead of pictures, because a still scene looks the same at any time, but its noise
    and movements never repeat. A scene without noise or movement would look like a loop, so it is never
    reported.

    Args:
        history: uint8 [n, NUMBERS]: signatures, oldest first.
    """
    if len(history) <= 2 * _REPEATED:
        return False
    steps = np.diff(history, axis=0).view(np.int8)
    centre = np.partition(np.ascontiguousarray(steps.T), len(steps) // 2, axis=1)[:, len(steps) // 2]
    changes = steps - centre.astype(np.int16)
    # The median of small whole numbers is found from their frequencies, because sorting takes five times as
    # long.
    counts = np.cumsum(np.bincount(np.abs(changes).ravel()))
    activity = float(np.searchsorted(counts, changes.size // 2, side="right"))
    if activity < 1:
        return False
    changes = changes.astype(np.float32)
    np.clip(changes, -3 * activity, 3 * activity, out=changes)  # so that a single passer-by does not dominate
    newest = changes[-_REPEATED:]
    lags = len(changes) - _MIN_LAG - _REPEATED + 1
    # One matrix product of all pairs; the sum along a diagonal belongs to one lag.
    products = np.ascontiguousarray(changes @ newest.T)
    row, column = products.strides
    diagonals = np.lib.stride_tricks.as_strided(products, (lags, _REPEATED), (row, row + column))
    powers = np.concatenate([[0.0], np.cumsum(np.add.reduce(changes * changes, axis=1, dtype=np.float64))])
    scale = np.sqrt(
        (powers[_REPEATED : _REPEATED + lags] - powers[:lags]) * (powers[-1] - powers[-1 - _REPEATED])
    )
    alike = np.add.reduce(diagonals, axis=1) / np.maximum(scale, 1e-6)
    best = float(alike.max())
    return best >= _MIN_CORRELATION and float((alike > 0.6 * best).mean()) <= _MAX_NEAR_SHARE
