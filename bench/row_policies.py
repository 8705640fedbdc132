"""Published rules for choosing the rows to compute again, and a random choice: the rivals of `FRONT`."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lookout.models.windows import RowPolicy, RowRange, Selection, WindowPlan, ranges_of

Rows = NDArray[np.int64]


class CacheBlend(RowPolicy):
    """The rows whose stored K and V deviate most from fresh ones after one layer (CacheBlend, section 4)."""

    value = "cacheblend"

    def choose(self, plan: WindowPlan, old: Rows, fresh: Rows, budget: int, layers: int) -> WindowPlan:
        """See `RowPolicy.choose`."""
        # The first layer computes all old rows, to compare them; the rest of the budget is spread over the
        # others.
        rows = max(0, min(len(old), (budget * layers - len(old)) // max(1, layers - 1)))
        return replace(plan, compute=_runs(old, fresh), select=Selection(rows))


class VLCache(RowPolicy):
    """The first visual rows, with a share that falls from layer to layer."""

    value = "vlcache"

    def choose(self, plan: WindowPlan, old: Rows, fresh: Rows, budget: int, layers: int) -> WindowPlan:
        """See `RowPolicy.choose`."""
        schedule = tuple(_runs(old[:count], fresh) for count in falling_shares(budget, layers, len(old)))
        return replace(plan, compute=schedule[0], layers=schedule)


class RandomRows(RowPolicy):
    """Rows anywhere: the floor. The draw follows from the window's name, so that a replay draws the same."""

    value = "random-k"

    def choose(self, plan: WindowPlan, old: Rows, fresh: Rows, budget: int, layers: int) -> WindowPlan:
        """See `RowPolicy.choose`."""
        draw = np.random.default_rng(zlib.crc32(f"0:{plan.stream}:{plan.window}".encode()))
        return replace(plan, compute=_runs(draw.choice(old, budget, replace=False), fresh))


CACHEBLEND: Final = CacheBlend()
VLCACHE: Final = VLCache()
RANDOM_K: Final = RandomRows()
ROW_POLICIES: Final = (CACHEBLEND, VLCACHE, RANDOM_K)


def falling_shares(budget: int, layers: int, limit: int) -> tuple[int, ...]:
    """Rows per layer that fall linearly from 1.5 x to 0.5 x `budget` and sum to budget * layers (at most
    `limit` each): the layer-wise share of VLCache."""
    if layers == 1:
        return (min(budget, limit),)
    shares = [budget * (1.5 - layer / (layers - 1)) for layer in range(layers)]
    edges = np.rint(np.cumsum(shares)).astype(int)
    counts = np.diff(np.concatenate(([0], edges)))
    # Rounding by cumulative sums keeps the total; sorted, since neighbours may differ by one the wrong way
    # round.
    return tuple(int(min(count, limit)) for count in np.sort(counts)[::-1])


def _runs(left: Rows, right: Rows) -> tuple[RowRange, ...]:
    return ranges_of(np.union1d(left, right))
