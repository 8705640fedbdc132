"""95 % bootstrap intervals of scores, resampled over clips or cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]
"""[clips, questions, (hit, miss, false, quiet)]."""


def counted(p: Sequence[float], true: Sequence[bool], threshold: float = 0.5) -> tuple[int, int, int, int]:
    """Count one question's true positives, false negatives, false positives and true negatives."""
    said, truth = np.array(p) > threshold, np.array(true, dtype=bool)
    pairs = ((said, truth), (~said, truth), (said, ~truth), (~said, ~truth))
    hit, miss, false, quiet = (int((one & other).sum()) for one, other in pairs)
    return hit, miss, false, quiet


def mean_f1(table: Table, rows: Sequence[int]) -> NDArray[np.float64]:
    """Return the mean F1 of some questions from counts [..., questions, 4].

    Questions without a positive case are left out; NaN if no question has one.
    """
    hit, miss, false = (table[..., rows, part].astype(float) for part in range(3))
    total = 2 * hit + miss + false
    cases = (total > 0).sum(-1)
    f1 = (2 * hit / np.maximum(total, 1)).sum(-1)
    return np.where(cases > 0, f1 / np.maximum(cases, 1), np.nan)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Bootstrap samples of clips, the same for every way of computing: [rounds, clips]."""

    rows: NDArray[np.int64]

    @classmethod
    def of(cls, count: int, rounds: int = 2000) -> Drawn:
        """Draw samples of ``count`` clips."""
        return cls(np.random.default_rng(0).integers(0, count, (rounds, count)))

    def f1(self, table: Table, rows: Sequence[int]) -> NDArray[np.float64]:
        """Return the mean F1 of some questions in every draw."""
        return mean_f1(table[self.rows].sum(1), rows)

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of one value per clip in every draw; NaN values are left out."""
        known = ~np.isnan(values)
        total = np.where(known, values, 0.0)[self.rows].sum(-1)
        count = known[self.rows].sum(-1)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def edges(values: NDArray[np.float64], digits: int = 3) -> list[float]:
    """Return the ends of the 95 % interval of the draws."""
    return [round(float(edge), digits) for edge in np.nanquantile(values, (0.025, 0.975))]
