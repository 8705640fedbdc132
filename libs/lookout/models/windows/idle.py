"""Idle windows: nothing visible has changed since the last answered window, so its answer still holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Luma = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class BlockChange:
    """Whether anything changed in one block.

    Attributes:
        quiet: Whether no part of the block is missing and pruning kept only its anchors.
        luma: Mean grey level of each patch of its anchors.
    """

    index: int
    quiet: bool
    luma: Luma


@dataclass(frozen=True, slots=True, eq=False)
class IdleState:
    """Consecutive quiet blocks up to `last` whose anchors all agree: no patch differs by more than
    `tolerance` grey levels between any two of them. Slow drift therefore ends the state, just like a sudden
    change."""

    tolerance: int
    last: int
    low: Luma
    high: Luma

    @classmethod
    def of(cls, changes: Iterable[BlockChange], tolerance: int) -> Self | None:
        """Return the state after the blocks of one window; None if something changed in them."""
        quiet: Self | None = None
        for number, change in enumerate(changes):
            if number == 0:
                quiet = cls(tolerance, change.index - 1, change.luma, change.luma)
            quiet = quiet and quiet.after(change)
        return quiet

    def after(self, change: BlockChange) -> Self | None:
        """Return the state after the next block; None if that block ends it."""
        if not change.quiet or change.index != self.last + 1 or change.luma.shape != self.low.shape:
            return None
        low, high = np.minimum(self.low, change.luma), np.maximum(self.high, change.luma)
        if not low.size or int((high - low).max()) > self.tolerance:
            return None
        return type(self)(self.tolerance, change.index, low, high)
