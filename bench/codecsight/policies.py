"""What is compared: which tokens a window has, and which of its rows are computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from bench.answered import Setting, default
from bench.floors import DissimilarTokens
from bench.row_policies import CACHEBLEND, RANDOM_K, VLCACHE
from lookout.models.engines.transformers import attention, forward
from lookout.models.windows import EncodedFrame, Policy, StrideBlock
from lookout.pruning import (
    PRESETS as PRUNING,
    Carry,
    EncodedGroups,
    MaskPolicy,
    PrunePolicy,
    Sample,
    TemporalMask,
    TokenPolicy,
    WholeFrames,
)
from lookout.pruning.luma import patch_difference
from lookout.video.motion.grids import GroupedPatches, Mask, spread

DENSE, PRUNED, VECTORS, EVS, DEJA_VU, WRONG = "dense", "default", "codecsight", "evs", "deja-vu", "wrong"
BEHIND = "default after the tower"
KEYFRAMES = "every token, anchors at keyframes alone"
ANYWHERE, ANCHORS, SHARE = "random tokens", "anchors alone", "luma by block"
#: EVS's choice of what the tower encodes under a low threshold of luma, grey levels
LOOSE: Final = {f"luma {tau:g}": PrunePolicy(luma_tau=tau) for tau in (0.5, 1.0)}
THINNED: Final = {f"evs of {name}": name for name in LOOSE}
WHOLE: Final = Setting(Policy.PRUNE_ONLY)


@contextmanager
def corner_mask() -> Iterator[None]:
    """Scattered rows see the keys that a causal mask aligned to the bottom right corner shows them, as with a
    kernel that is told "causal" and nothing else: the fault that a row computed again must not meet."""

    def faulty(
        rows: torch.Tensor, host: Sequence[int] | None, n: int, dtype: torch.dtype, **_: object
    ) -> list[attention.Chunk]:
        count = len(rows)
        seen = torch.arange(n)[None] <= (torch.arange(count) + n - count)[:, None]
        return [attention.Chunk(0, count, n, attention.additive(seen, dtype))]

    usual = forward.chunks_of
    forward.chunks_of = faulty
    try:
        yield
    finally:
        forward.chunks_of = usual


@dataclass(frozen=True)
class TurnedMasks(MaskPolicy):
    """The default's masks turned by half a turn behind every anchor: as many tokens, of other places. A
    question that scores as well under them needs no tokens of what moved.

    Attributes:
        rule: Whose masks are turned.
    """

    rule: PrunePolicy = field(default_factory=PrunePolicy)

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        masks, carry = self.rule.masks(samples, grid, carry)
        turned = [mask if mask.anchor else replace(mask, keep=_turned(mask)) for mask in masks]
        return [replace(mask, dynamic=spread(mask.keep, grid)) for mask in turned], carry


@dataclass(frozen=True)
class LumaShare(MaskPolicy):
    """The groups of a block whose luma differs most from the frame before: EVS's choice without a tower.

    Attributes:
        share: Of the groups behind a block's anchor, above 0 and at most 1.
    """

    share: float

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        masks, _ = WholeFrames().masks(samples, grid)
        anchor = next((i for i, mask in enumerate(masks) if mask.anchor), len(masks))
        behind = masks[anchor + 1 :]
        if behind:
            pictures = [samples[mask.frames[0]].luma for mask in masks[anchor:]]
            changes = [
                of_groups(patch_difference(now, before, grid), grid) for before, now in pairwise(pictures)
            ]
            scores = np.concatenate([change.ravel() for change in changes])
            chosen = np.zeros(scores.size, np.bool_)
            chosen[np.argsort(-scores, kind="stable")[: max(1, round(self.share * scores.size))]] = True
            keeps = [part.reshape(changes[0].shape) for part in np.split(chosen, len(behind))]
            masks[anchor + 1 :] = [
                replace(mask, keep=keep, dynamic=spread(keep, grid))
                for mask, keep in zip(behind, keeps, strict=True)
            ]
        return masks, None


@dataclass(frozen=True)
class RandomTokens(TokenPolicy):
    """Tokens of whole frames anywhere in a block: what EVS's choice is compared with.

    Attributes:
        share: Of the tokens behind a block's anchor, 0 to 1; 0: anchors alone.
    """

    share: float

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`: everything is encoded."""
        return PrunePolicy(everything=True).masks(samples, grid, carry)

    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        """See `TokenPolicy.tokens`."""
        masks = [frame.keep.copy() for frame in frames]
        behind = [mask for mask, frame in zip(masks, frames, strict=True) if not frame.anchor]
        if behind:
            places = np.random.default_rng(len(behind)).permutation(sum(mask.size for mask in behind))
            chosen = places < round(self.share * len(places))
            for mask, part in zip(behind, np.split(chosen, len(behind)), strict=True):
                mask[:] = part.reshape(mask.shape)
        return masks


def _turned(mask: TemporalMask) -> np.ndarray:
    return np.ascontiguousarray(mask.keep[::-1, ::-1])


def of_groups(patches: np.ndarray, grid: GroupedPatches) -> np.ndarray:
    """Return the maximum over the patches of each group: [rows, cols] -> [group rows, group cols]."""
    rows = np.stack([patches[list(taps)].max(axis=0) for taps in grid.row_taps])
    return np.stack([rows[:, list(taps)].max(axis=1) for taps in grid.col_taps], axis=1)


def front(frames: int) -> Setting:
    """A run of rows from the window's front, as many as so many whole frames have."""
    return Setting(Policy.FRONT, frames)


PAPER: Final = PRUNING["codecsight"]
BUDGET = 2  # frames; the default's without a burst
EQUAL = 8  # frames; about the FLOPs that the default spends with its bursts
#: name of a policy: kind of masks, and how windows are computed
WAYS: Final[dict[str, tuple[str, Setting]]] = {
    "full": (DENSE, WHOLE),
    "prune only": (PRUNED, WHOLE),
    "refresh only": (KEYFRAMES, Setting(Policy.REFRESH)),
    "reuse-all": (PRUNED, Setting(Policy.REUSE_ALL)),
    "codecsight": (VECTORS, Setting(Policy.REFRESH)),
    "codecsight, whole": (VECTORS, WHOLE),
    "default": (PRUNED, default()),
    **{f"front {frames}": (PRUNED, front(frames)) for frames in (1, 2, 4, 8, 16)},
    "faithful": (PRUNED, default("faithful")),
    "cacheblend": (PRUNED, Setting(CACHEBLEND, BUDGET)),
    "vlcache": (PRUNED, Setting(VLCACHE, BUDGET)),
    "random-k": (PRUNED, Setting(RANDOM_K, BUDGET)),
    **{
        f"{policy.value} {EQUAL}": (PRUNED, Setting(policy, EQUAL))
        for policy in (CACHEBLEND, VLCACHE, RANDOM_K)
    },
    "evs": (EVS, WHOLE),
    "evs, reused": (EVS, default()),
    "behind": (BEHIND, WHOLE),
    "behind, reused": (BEHIND, default()),
    **{f"{kind}, reused": (kind, default()) for kind in (*THINNED, ANYWHERE, ANCHORS, SHARE)},
    "deja-vu": (DEJA_VU, WHOLE),
    "wrong mask": (WRONG, WHOLE),
    "refresh, corner mask": (VECTORS, Setting(Policy.REFRESH)),
}
FAULTY: Final = ("refresh, corner mask",)  # computed within `corner_mask`
REFERENCES: Final = {f"{kind}, whole": (kind, WHOLE) for kind in (*THINNED, ANYWHERE, ANCHORS, SHARE)}
#: kinds of masks in which windows are also computed whole, as the measure of |dp|
MEASURES: Final = {
    PRUNED: "prune only",
    DENSE: "full",
    KEYFRAMES: "full",
    VECTORS: "codecsight, whole",
    EVS: "evs",
    BEHIND: "behind",
    **{kind: name for name, (kind, _) in REFERENCES.items()},
}
#: kinds of masks that keep as many tokens behind anchors as the default does
EQUAL_TOKENS: Final = (EVS, ANYWHERE, SHARE, *THINNED)
#: kinds of masks whose tokens the tower encodes under another kind
ENCODED: Final = {KEYFRAMES: DENSE, EVS: DENSE, BEHIND: DENSE, DEJA_VU: PRUNED, ANYWHERE: DENSE, **THINNED}


def masks_of(kind: str, share: float) -> MaskPolicy:
    """The rule of masks of a kind.

    Args:
        kind: Any except Deja Vu's and the one that drops tokens after the tower.
        share: Of the tokens behind anchors that a choice of so many keeps.
    """
    if kind == DENSE:
        return PrunePolicy(everything=True)
    if kind == EVS:
        return DissimilarTokens(share)
    if kind == SHARE:
        return LumaShare(share)
    if kind in {ANYWHERE, ANCHORS}:
        return RandomTokens(share if kind == ANYWHERE else 0.0)
    if kind in THINNED:
        return DissimilarTokens(share, LOOSE[THINNED[kind]])
    every: MaskPolicy = replace(PAPER, everything=True)
    return {PRUNED: PrunePolicy(), WRONG: TurnedMasks(), VECTORS: PAPER, KEYFRAMES: every, **LOOSE}[kind]


def kept_behind_anchors(blocks: Sequence[StrideBlock]) -> float:
    """Share of the tokens that the frames behind anchors keep."""
    frames = [frame for block in blocks for frame in block.frames if not frame.anchor]
    return sum(len(frame.kept) for frame in frames) / max(1, sum(frame.keep.size for frame in frames))


def kept_behind(whole: Sequence[StrideBlock], pruned: Sequence[StrideBlock]) -> list[StrideBlock]:
    """The tokens of `whole` at the places that `pruned` keeps: its masks, applied behind the tower."""
    return [
        replace(
            block,
            frames=tuple(
                replace(frame, keep=one.keep, tokens=frame.tokens[torch.from_numpy(one.kept)])
                for frame, one in zip(block.frames, other.frames, strict=True)
            ),
        )
        for block, other in zip(whole, pruned, strict=True)
    ]


def reused(blocks: Sequence[StrideBlock]) -> list[StrideBlock]:
    """Pruned blocks of one stream whose missing tokens are those last encoded at their place: the tower's
    outputs are reused, the language model reads every frame whole (Deja Vu)."""
    last: torch.Tensor | None = None
    out = []
    for block in blocks:
        frames: list[EncodedFrame] = []
        for frame in block.frames:
            if last is None:
                if not frame.keep.all():
                    raise ValueError(f"{block.stream} begins with a frame that is not whole")
                last = frame.tokens
            last = last.index_copy(0, torch.from_numpy(frame.kept), frame.tokens)
            frames.append(replace(frame, keep=np.ones_like(frame.keep), tokens=last))
        out.append(replace(block, frames=tuple(frames)))
    return out
