"""Detects idle windows: nothing visible has changed since the last answered window, so its answer still
holds."""

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
        index: The block's index.
        quiet: Whether nothing changed: no frame of the block is missing, and pruning kept only its anchors.
        luma: Mean grey level of each patch of the block's anchors, uint8.
    """

    index: int
    quiet: bool
    luma: Luma


@dataclass(frozen=True, slots=True, eq=False)
class IdleState:
    """A run of consecutive quiet blocks whose anchors look the same.

    No patch differs by more than `tolerance` between any two anchors of the run. A slow drift therefore ends
    the run, just like a sudden change.

    Attributes:
        tolerance: Maximum difference in grey levels.
        last: Index of the newest block.
        low: The darkest value of each patch in any anchor, uint8.
        high: The brightest value of each patch in any anchor, uint8.
    """

    tolerance: int
    last: int
    low: Luma
    high: Luma

    @classmethod
    def of(cls, changes: Iterable[BlockChange], tolerance: int) -> Self | None:
        """Return the state after the blocks of one window; None if anything changed in these blocks."""
        quiet: Self | None = None
        for number, change in enumerate(changes):
            if number == 0:
                quiet = cls(tolerance, change.index - 1, change.luma, change.luma)
            quiet = quiet and quiet.after(change)
        return quiet

    def after(self, change: BlockChange) -> Self | None:
        """Return the state after the next block; None if something changed in that block."""
        if not change.quiet or change.index != self.last + 1 or change.luma.shape != self.low.shape:
            return None
        low, high = np.minimum(self.low, change.luma), np.maximum(self.high, change.luma)
        if not low.size or int((high - low).max()) > self.tolerance:
            return None
        return type(self)(self.tolerance, change.index, low, high)
