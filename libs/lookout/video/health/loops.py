"""Footage that repeats: a camera that is replaced by a recording of itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from lookout.video.health.looks import CELLS, F32, U8

#: samples that are remembered: three minutes at two a second
REMEMBERED: Final = 360
#: numbers that each sample leaves: the more, the less of a correlation is chance
NUMBERS: Final = 16
#: samples that must repeat
_REPEATED: Final = 80
#: samples by which a repetition lies back at least: people wave, machines turn
_LEAST: Final = 20
#: correlation of a repetition; where something moves in a rhythm it is reached now and then, not for a minute
_ALIKE: Final = 0.3
#: share of the moments that come near to the best one: where there are more, the scene itself is periodic
_NEAR: Final = 0.016
# Signs of random projections: any movement changes the sums. Fixed, as they are compared between processes.
_SIGNS: Final = (
    np.where(np.random.default_rng(7).random((NUMBERS, CELLS * CELLS)) < 0.5, -1, 1).astype(np.float32).T
)


def signatures(luma: F32) -> U8:
    """Numbers that change as soon as something moves.

    Args:
        luma: float32 [n, CELLS, CELLS].

    Returns:
        uint8 [n, NUMBERS], modulo 256: their differences are what counts.
    """
    sums = luma.reshape(len(luma), -1) @ _SIGNS / 2
    return (np.rint(sums).astype(np.int64) % 256).astype(np.uint8)


def repeats(history: U8) -> bool:
    """Whether the newest samples are those of an earlier moment.

    Changes are compared, not pictures: a still scene looks like itself at any time, but its noise and its
    movements never come twice. What has neither cannot be told from a loop, and is not taken for one.

    Args:
        history: uint8 [n, NUMBERS]: signatures, oldest first.
    """
    if len(history) <= 2 * _REPEATED:
        return False
    changes = np.diff(history, axis=0).view(np.int8).astype(np.float32)
    changes -= np.median(changes, axis=0)
    activity = float(np.median(np.abs(changes)))
    if activity < 1:
        return False
    np.clip(changes, -3 * activity, 3 * activity, out=changes)  # one passer-by is not all that counts
    newest = changes[-_REPEATED:]
    lags = len(changes) - _LEAST - _REPEATED + 1
    # One product of all pairs, and of each lag the sum of its diagonal.
    products = np.ascontiguousarray(changes @ newest.T)
    row, column = products.strides
    diagonals = np.lib.stride_tricks.as_strided(products, (lags, _REPEATED), (row, row + column))
    powers = np.concatenate([[0.0], np.cumsum(np.add.reduce(changes * changes, axis=1, dtype=np.float64))])
    scale = np.sqrt(
        (powers[_REPEATED : _REPEATED + lags] - powers[:lags]) * (powers[-1] - powers[-1 - _REPEATED])
    )
    alike = np.add.reduce(diagonals, axis=1) / np.maximum(scale, 1e-6)
    best = float(alike.max())
    return best >= _ALIKE and float((alike > 0.6 * best).mean()) <= _NEAR
