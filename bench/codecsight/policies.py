"""What is compared: which tokens a window has, and which of its rows are computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch

from bench.windows_fidelity import Setting, default
from lookout.engines.transformers import attention, forward
from lookout.motion.grids import GroupedPatches, spread
from lookout.pruning import (
    PRESETS as PRUNING,
    Carry,
    DissimilarTokens,
    MaskPolicy,
    PrunePolicy,
    Sample,
    TemporalMask,
)
from lookout.windows import EncodedFrame, LabelPolicy, Policy, StrideBlock

DENSE, PRUNED, VECTORS, EVS, DEJA_VU, WRONG = "dense", "default", "codecsight", "evs", "deja-vu", "wrong"
WHOLE: Final = Setting(LabelPolicy.FRAME, Policy.PRUNE_ONLY)


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


def _turned(mask: TemporalMask) -> np.ndarray:
    return np.ascontiguousarray(mask.keep[::-1, ::-1])


def front(frames: int) -> Setting:
    """A run of rows from the window's front, as many as so many whole frames have."""
    return Setting(LabelPolicy.FRAME, Policy.FRONT, frames)


PAPER: Final = PRUNING["codecsight"]
BUDGET = 2  # frames; the default's without a burst
#: name of a policy: kind of masks, and how windows are computed
WAYS: Final[dict[str, tuple[str, Setting]]] = {
    "full": (DENSE, WHOLE),
    "prune only": (PRUNED, WHOLE),
    "refresh only": (DENSE, Setting(LabelPolicy.FRAME, Policy.REFRESH)),
    "reuse-all": (PRUNED, Setting(LabelPolicy.FRAME, Policy.REUSE_ALL)),
    "codecsight": (VECTORS, Setting(LabelPolicy.FRAME, Policy.REFRESH)),
    "default": (PRUNED, default()),
    **{f"front {frames}": (PRUNED, front(frames)) for frames in (1, 2, 4, 8)},
    "cacheblend": (PRUNED, Setting(LabelPolicy.FRAME, Policy.CACHEBLEND, BUDGET)),
    "vlcache": (PRUNED, Setting(LabelPolicy.FRAME, Policy.VLCACHE, BUDGET)),
    "random-k": (PRUNED, Setting(LabelPolicy.FRAME, Policy.RANDOM_K, BUDGET)),
    "evs": (EVS, WHOLE),
    "deja-vu": (DEJA_VU, WHOLE),
    "wrong mask": (WRONG, WHOLE),
    "refresh, corner mask": (VECTORS, Setting(LabelPolicy.FRAME, Policy.REFRESH)),
}
FAULTY: Final = ("refresh, corner mask",)  # computed within `corner_mask`
#: kinds of masks in which windows are also computed whole, as the measure of |dp|
MEASURES: Final = {PRUNED: "prune only", DENSE: "full", VECTORS: "codecsight, whole"}
REFERENCES: Final = {"codecsight, whole": (VECTORS, WHOLE)}


def masks_of(kind: str, share: float) -> MaskPolicy:
    """The rule of masks of a kind.

    Args:
        kind: Dense, default, codecsight, evs or wrong.
        share: Of the tokens behind anchors, kept by EVS.
    """
    if kind == DENSE:
        return PrunePolicy(everything=True)
    if kind == EVS:
        return DissimilarTokens(min(1.0, max(0.001, share)))
    return {PRUNED: PrunePolicy(), WRONG: TurnedMasks(), VECTORS: PAPER}[kind]


def kept_behind_anchors(blocks: Sequence[StrideBlock]) -> float:
    """Share of the tokens that the frames behind anchors keep."""
    frames = [frame for block in blocks for frame in block.frames if not frame.anchor]
    return sum(len(frame.kept) for frame in frames) / max(1, sum(frame.keep.size for frame in frames))


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
