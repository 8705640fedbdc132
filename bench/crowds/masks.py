"""Rules of masks that keep more than the default does: where many move, or simply everywhere."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from lookout.pruning import Carry, MaskPolicy, PrunePolicy, Sample, TemporalMask
from lookout.pruning.luma import patch_difference
from lookout.video.motion.grids import GroupedPatches, Mask

ONE_A_STRIDE: Final = PrunePolicy(anchor_samples=None)
"""The default's masks with one anchor a stride, which all rules here are compared with."""


@dataclass(frozen=True)
class Widened(MaskPolicy):
    """The masks of a rule, and more groups of some frames behind a block's anchor.

    What is added does not change what the rule compares later frames with.

    Attributes:
        rule: Whose masks are widened.
    """

    rule: PrunePolicy = field(default=ONE_A_STRIDE, kw_only=True)

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        masks, carry = self.rule.masks(samples, grid, carry)
        anchor = next((i for i, mask in enumerate(masks) if mask.anchor), len(masks))
        if len(masks) > anchor + 1:
            more = self.more(masks[anchor:], samples, grid)
            masks[anchor + 1 :] = [
                replace(mask, keep=mask.keep | added)
                for mask, added in zip(masks[anchor + 1 :], more, strict=True)
            ]
        return masks, carry

    @abstractmethod
    def more(
        self, masks: Sequence[TemporalMask], samples: Sequence[Sample], grid: GroupedPatches
    ) -> list[Mask]:
        """What is kept besides, of every mask behind the first, which is the block's anchor."""


@dataclass(frozen=True)
class Anywhere(Widened):
    """Groups that the rule drops are kept with the same chance everywhere: random-k.

    Attributes:
        chance: Of a dropped group. The draw follows from the pixels, so that a replay gives the same masks.
    """

    chance: float

    def more(
        self, masks: Sequence[TemporalMask], samples: Sequence[Sample], grid: GroupedPatches
    ) -> list[Mask]:
        """See `Widened.more`."""
        return [
            np.random.default_rng(_content(samples[mask.frames[0]])).random(mask.keep.shape) < self.chance
            for mask in masks[1:]
        ]


@dataclass(frozen=True)
class Floor(Widened):
    """Every frame keeps so many groups at least, those whose luma differs most from the frame before: a
    larger uniform share.

    Attributes:
        groups: Of a frame; of a fraction, as many frames round up.
    """

    groups: float

    def more(
        self, masks: Sequence[TemporalMask], samples: Sequence[Sample], grid: GroupedPatches
    ) -> list[Mask]:
        """See `Widened.more`."""
        pictures = [samples[mask.frames[0]] for mask in masks]
        out = []
        for mask, (before, now) in zip(masks[1:], pairwise(pictures), strict=True):
            draw = np.random.default_rng(_content(now)).random()
            lacking = int(self.groups + draw) - mask.kept
            added = np.zeros(mask.keep.size, np.bool_)
            if lacking > 0:
                scores = of_groups(patch_difference(now.luma, before.luma, grid), grid).ravel()
                scores[mask.keep.ravel()] = -1.0
                added[np.argsort(-scores, kind="stable")[:lacking]] = True
            out.append(added.reshape(mask.keep.shape))
        return out


@dataclass(frozen=True)
class EvenFrames(Widened):
    """Whole frames at even distances between anchors.

    Attributes:
        count: Of a block; of a fraction, as many blocks round up.
    """

    count: float

    def more(
        self, masks: Sequence[TemporalMask], samples: Sequence[Sample], grid: GroupedPatches
    ) -> list[Mask]:
        """See `Widened.more`."""
        draw = np.random.default_rng(_content(samples[masks[0].frames[0]])).random()
        whole = min(int(self.count + draw), len(masks) - 1)
        chosen = {round(part * len(masks) / (whole + 1)) for part in range(1, whole + 1)}
        return [np.full(mask.keep.shape, number in chosen) for number, mask in enumerate(masks[1:], 1)]


@dataclass(frozen=True)
class NewestFrame(Widened):
    """The newest frame of every block is whole: what is asked of this moment stands in it."""

    def more(
        self, masks: Sequence[TemporalMask], samples: Sequence[Sample], grid: GroupedPatches
    ) -> list[Mask]:
        """See `Widened.more`."""
        return [
            np.full(mask.keep.shape, number == len(masks) - 1) for number, mask in enumerate(masks[1:], 1)
        ]


def of_groups(patches: np.ndarray, grid: GroupedPatches) -> np.ndarray:
    """The largest of the patches behind every group: [rows, cols] -> [group rows, group cols]."""
    rows = np.stack([patches[list(taps)].max(axis=0) for taps in grid.row_taps])
    return np.stack([rows[:, list(taps)].max(axis=1) for taps in grid.col_taps], axis=1)


def _content(sample: Sample) -> int:
    return zlib.crc32(sample.pixels.tobytes())
