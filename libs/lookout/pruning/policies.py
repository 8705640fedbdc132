"""Policies by name: the registry, and helpers for writing a policy.

The registry has policies that decide before the vision tower runs, so that a fleet can use them. A
`TokenPolicy`, which also drops tokens after the tower, is passed as an object: `Pipeline(policy=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from lookout.errors import LookoutError
from lookout.pruning.gather import GatherMethod
from lookout.pruning.masks import (
    Accumulation,
    Anchors,
    Carry,
    Change,
    MaskPolicy,
    PrunePolicy,
    Sample,
    TemporalMask,
    temporal_pairs,
)
from lookout.video.motion.grids import GroupedPatches, Mask, spread


class PolicyError(LookoutError, ValueError):
    """The policy does not exist, or its parameters are invalid."""


def anchored_masks(
    samples: Sequence[Sample], grid: GroupedPatches, choose: Callable[[list[Sample]], Mask]
) -> list[TemporalMask]:
    """Return masks for a stride block: the anchor is whole, and `choose` decides about later patches.

    Args:
        samples: The sampled frames of the block, in time order.
        grid: Patches and groups of the model's input.
        choose: Returns the groups to keep for the frames of one temporal patch: bool [group rows, group
            cols]. It is called only after the anchor.

    Returns:
        The masks. The first temporal patch without a damaged frame is the anchor; temporal patches before it
            are whole, too.
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
class WholeFrames(MaskPolicy):
    """Keeps every patch of every frame. It does not compare frames, which would cost a fifth as much as
    encoding them."""

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        everything = np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)
        return anchored_masks(samples, grid, lambda members: everything), None


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """An entry of the registry.

    Attributes:
        policy: The policy with its parameters.
        keeps: What the policy keeps, for the table in docs/pruning.md.
    """

    policy: MaskPolicy
    keeps: str


POLICIES: Final[Mapping[str, NamedPolicy]] = MappingProxyType(
    {
        "default": NamedPolicy(
            PrunePolicy(),
            "patches whose luma differs from their last encoded version, and a whole frame at least every "
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
    }
)


def policy_of(name: MaskPolicy | str) -> MaskPolicy:
    """Return the policy with a name; a policy object is returned unchanged.

    Raises:
        PolicyError: The name is unknown, or the object is not a policy.
    """
    if not isinstance(name, str):
        if isinstance(name, type) or not callable(getattr(name, "masks", None)):
            raise PolicyError(
                f"a pruning policy must be a name or an object such as PrunePolicy(), not {name!r:.80}"
            )
        return name
    if name not in POLICIES:
        raise PolicyError(f"pruning policy {name!r} is unknown: choose one of {', '.join(POLICIES)}")
    return POLICIES[name].policy


def keeping_everything(policy: MaskPolicy) -> MaskPolicy:
    """Return a policy that keeps every patch, for comparison with pruning. Anchors stay where `PrunePolicy`
    puts them."""
    if isinstance(policy, PrunePolicy):
        return replace(policy, everything=True)
    return PrunePolicy(everything=True)


def policies_table() -> str:
    """Return the registry as a table for docs/pruning.md."""
    rows = [
        f"| `{name}` | {line.keeps} | {line.policy.gathers or 'none'} |" for name, line in POLICIES.items()
    ]
    return "\n".join(["| `LOOKOUT_PRUNING` | keeps | motion vectors |", "| --- | --- | --- |", *rows])
