"""Policies by name: the registry, and helpers that make a policy short.

Every policy decides masks before the vision tower runs (`MaskPolicy`); a `TokenPolicy` drops tokens behind
it, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from lookout.errors import LookoutError
from lookout.pruning.gather import GatherMethod
from lookout.pruning.masks import (
    F32,
    Accumulation,
    Anchors,
    Carry,
    Change,
    EncodedGroups,
    MaskPolicy,
    PrunePolicy,
    Sample,
    TemporalMask,
    TokenPolicy,
    temporal_pairs,
)
from lookout.video.motion.grids import GroupedPatches, Mask, spread


class PolicyError(LookoutError, ValueError):
    """There is no policy of that name, or its parameters make no sense."""


def anchored_masks(
    samples: Sequence[Sample], grid: GroupedPatches, choose: Callable[[list[Sample]], Mask]
) -> list[TemporalMask]:
    """Masks of a stride block whose anchor is whole and whose other frames are decided one by one.

    Args:
        samples: The sampled frames of the block, in the order of time.
        grid: Patches and groups of the model's input.
        choose: The groups to keep of the frames of one temporal patch: bool [group rows, group cols]. It is
            asked after the anchor only.

    Returns:
        The first temporal patch without a damaged frame is the anchor; those before it are whole, too.
    """
    masks: list[TemporalMask] = []
    anchored = False
    for frames in temporal_pairs(len(samples), grid.temporal):
        members = [samples[i] for i in dict.fromkeys(frames)]
        anchor = not anchored and not any(sample.corrupt for sample in members)
        if anchored:
            keep = choose(members)
        else:
            keep = np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)
        anchored = anchored or anchor
        masks.append(TemporalMask(frames, anchor, keep, spread(keep, grid)))
    return masks


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
class WholeFrames(MaskPolicy):
    """Every patch of every frame; no frame is compared with another, which takes a fifth of encoding."""

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        everything = np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)
        return anchored_masks(samples, grid, lambda members: everything), None


@dataclass(frozen=True)
class DissimilarTokens(TokenPolicy):
    """The tokens least like those last encoded at their place, as in Efficient Video Sampling (arXiv
    2510.14624), which chooses over a whole video and encodes every patch: that saves prefill, not vision.

    Attributes:
        share: Of the places behind a block's anchor, above 0 and at most 1.
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


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A line of the registry.

    Attributes:
        policy: The policy with its parameters.
        keeps: What it keeps, for the table of docs/pruning.md.
    """

    policy: MaskPolicy
    keeps: str


POLICIES: Final[Mapping[str, NamedPolicy]] = MappingProxyType(
    {
        "default": NamedPolicy(
            PrunePolicy(),
            "patches whose luma differs from what was last encoded of them, and a whole frame at least every "
            "eight samples",
        ),
        "codecsight": NamedPolicy(
            PrunePolicy(
                change=Change.VECTORS,
                rule=GatherMethod.UNION,
                tau=0.25,
                luma_tau=6.0,
                anchors=Anchors.GOP,
                anchor_samples=None,
                accumulation=Accumulation.SINCE_ANCHOR,
            ),
            "patches that the codec's vectors moved since the anchor, and every sampled I-frame (the paper)",
        ),
        "random": NamedPolicy(RandomPolicy(), "half of the groups, anywhere: the floor of a comparison"),
        "evs": NamedPolicy(
            DissimilarTokens(),
            "half of the tokens, those least like the frame before (Efficient Video Sampling); it drops them "
            "after the tower, so it is for `Pipeline`, `lookout eval` and `lookout analyze`",
        ),
    }
)

FLEET_POLICIES: Final = tuple(
    name for name, line in POLICIES.items() if not isinstance(line.policy, TokenPolicy)
)
"""What `LOOKOUT_PRUNING` may name: a fleet's records do not say what was dropped behind the tower."""


def policy_of(name: MaskPolicy | str) -> MaskPolicy:
    """A policy by its name; a policy itself stays as it is.

    Raises:
        PolicyError: There is none of that name, or it is no policy.
    """
    if not isinstance(name, str):
        if isinstance(name, type) or not callable(getattr(name, "masks", None)):
            raise PolicyError(
                f"a pruning policy is a name or an object such as RandomPolicy(), not {name!r:.80}"
            )
        return name
    if name not in POLICIES:
        raise PolicyError(f"pruning policy {name!r} is unknown: choose one of {', '.join(POLICIES)}")
    return POLICIES[name].policy


def keeping_everything(policy: MaskPolicy) -> MaskPolicy:
    """The policy with every patch kept: what pruning is compared with. Anchors stay where the rule of changes
    puts them.
    """
    if isinstance(policy, PrunePolicy):
        return replace(policy, everything=True)
    return PrunePolicy(everything=True)


def policies_table() -> str:
    """The registry as a table for docs/pruning.md."""
    rows = [
        f"| `{name}` | {line.keeps} | {line.policy.gathers or 'none'} |" for name, line in POLICIES.items()
    ]
    return "\n".join(["| `LOOKOUT_PRUNING` | keeps | motion vectors |", "| --- | --- | --- |", *rows])
