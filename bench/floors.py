"""Pruning policies that comparisons need: a floor, and Efficient Video Sampling's choice of tokens."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lookout.pruning import (
    Carry,
    EncodedGroups,
    GatherMethod,
    GroupedPatches,
    Mask,
    MaskPolicy,
    PolicyError,
    Sample,
    TemporalMask,
    TokenPolicy,
    WholeFrames,
    anchored_masks,
)

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class RandomPolicy(MaskPolicy):
    """A share of the groups anywhere: the floor that a policy must beat.

    The draw follows from the seed and the pixels, so that a replay gives the same masks.

    Attributes:
        share: Of the groups of every temporal patch that is no anchor, above 0 and at most 1.
        seed: Of the draw.
    """

    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PolicyError(f"share {self.share} of a random policy is not above 0 and at most 1")
        if self.seed < 0:
            raise PolicyError(f"seed {self.seed} of a random policy is negative")

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        return anchored_masks(samples, grid, lambda members: self._drawn(members, grid)), None

    def _drawn(self, members: list[Sample], grid: GroupedPatches) -> Mask:
        """Groups kept of one temporal patch: bool [group rows, group cols]."""
        shape = (len(grid.row_taps), len(grid.col_taps))
        groups = shape[0] * shape[1]
        # Frames have no number here that a replay would give again; their pixels are the same.
        content = [zlib.crc32(sample.pixels.tobytes()) for sample in members]
        keep = np.zeros(groups, np.bool_)
        draw = np.random.default_rng([self.seed, *content])
        keep[draw.permutation(groups)[: max(1, round(self.share * groups))]] = True
        return keep.reshape(shape)


@dataclass(frozen=True)
class DissimilarTokens(TokenPolicy):
    """The tokens least like those last encoded at their place, as in Efficient Video Sampling (arXiv
    2510.14624), which chooses over a whole video and encodes every patch: that saves prefill, not vision.

    Attributes:
        share: Of the places after a block's anchor, above 0 and at most 1.
        encoded: Which patches the tower encodes at all; a place that it leaves out is never kept.
    """

    share: float = 0.5
    encoded: MaskPolicy = field(default_factory=WholeFrames)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PolicyError(f"share {self.share} of dissimilar tokens is not above 0 and at most 1")

    @property
    def gathers(self) -> GatherMethod | None:
        """See `MaskPolicy.gathers`."""
        return self.encoded.gathers

    @property
    def residual(self) -> bool:
        """See `MaskPolicy.residual`."""
        return self.encoded.residual

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`: those of `encoded`."""
        return self.encoded.masks(samples, grid, carry)

    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        """See `TokenPolicy.tokens`: anchors and what stands before the first are kept whole."""
        masks = [frame.keep.copy() for frame in frames]
        anchor = next((i for i, frame in enumerate(frames) if frame.anchor), len(frames))
        behind = [i for i in range(anchor + 1, len(frames)) if not frames[i].anchor]
        if not behind:
            return masks
        scores = _dissimilarities(frames[anchor:])[[i - anchor for i in behind]]
        count = max(1, round(self.share * scores.size))
        chosen = np.zeros(scores.size, np.bool_)
        # A stable order, so that equal tokens of a still picture give the same masks on every machine.
        chosen[np.argsort(-scores, axis=None, kind="stable")[:count]] = True
        for i, part in zip(behind, chosen.reshape(scores.shape), strict=True):
            masks[i] &= part.reshape(masks[i].shape)
        return masks


def _dissimilarities(frames: Sequence[EncodedGroups]) -> F32:
    """How unlike every token is to what was last encoded at its place, from an anchor on.

    Returns:
        float32 [frames, groups]: 1 - cosine; -inf where nothing was encoded, 0 in the anchor.
    """
    last = np.array(frames[0].tokens, np.float32)
    scores = np.full((len(frames), frames[0].keep.size), -np.inf, np.float32)
    scores[0] = 0.0
    for row, frame in zip(scores[1:], frames[1:], strict=True):
        places = np.flatnonzero(frame.keep)
        row[places] = _dissimilarity(frame.tokens, last[places])
        last[places] = frame.tokens
    return scores


def _dissimilarity(tokens: F32, before: F32) -> F32:
    """1 - cosine of every token and the one at its place before: float32 [tokens]."""
    norms = np.linalg.norm(tokens, axis=1) * np.linalg.norm(before, axis=1)
    cosine = (tokens * before).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return np.asarray(1 - cosine, np.float32)
