"""The registry of pruning policies: names, settings, and what a policy of one's own must give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from lookout.pruning import (
    POLICIES,
    Accumulation,
    Anchors,
    Carry,
    Change,
    EncodedGroups,
    GatherMethod,
    GroupedPatches,
    MaskPolicy,
    PatchGrid,
    PrunePolicy,
    PruningSettings,
    Sample,
    TemporalMask,
    TokenPolicy,
    WholeFrames,
    drop_tokens,
    keeping_everything,
    policies_table,
    policy_of,
    prune_block,
)
from lookout.video.motion.grids import Mask

PAGE = Path(__file__).parents[3] / "docs/pruning.md"
GRID = PatchGrid.merged(8, 8, 4, 2)
PAIRS = PatchGrid.merged(8, 8, 4, 2, temporal=2)


def samples(count: int, damaged: Sequence[int] = ()) -> list[Sample]:
    """Frames of noise."""
    noise = np.random.default_rng(1).integers(0, 255, (count, 32, 32, 3), np.uint8)
    return [Sample(pixels, corrupt=i in damaged) for i, pixels in enumerate(noise)]


@dataclass(frozen=True)
class Fixed(MaskPolicy):
    """A policy that gives what it was given."""

    given: tuple[TemporalMask, ...]

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None
    ) -> tuple[list[TemporalMask], Carry | None]:
        return list(self.given), None


def test_default_and_codecsight_are_the_rules_of_changes() -> None:
    # their representation is part of the digest of the tokens
    assert repr(policy_of("default")) == repr(PrunePolicy())
    assert policy_of("codecsight") == PrunePolicy(
        change=Change.VECTORS,
        rule=GatherMethod.UNION,
        tau=0.25,
        luma_tau=6.0,
        anchors=Anchors.GOP,
        anchor_samples=None,
        accumulation=Accumulation.SINCE_ANCHOR,
    )


@pytest.mark.parametrize("grid", [GRID, PAIRS])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_one_whole_anchor_and_decides_the_same_again(name: str, grid: PatchGrid) -> None:
    block = samples(5, damaged=[0])
    masks, carry = prune_block(block, grid, policy_of(name))
    again, left = prune_block(block, grid, policy_of(name))
    assert [mask.anchor for mask in masks] == [i == 1 for i in range(len(masks))]
    assert masks[0].keep.all()
    assert masks[1].keep.all()
    assert all(np.array_equal(one.keep, other.keep) for one, other in zip(masks, again, strict=True))
    assert (carry is None) == (left is None)


def test_masks_that_do_not_fit_are_refused_with_the_policys_name() -> None:
    (mask,), _ = prune_block(samples(1), GRID, PrunePolicy())
    for given, words in [
        ((), r"Fixed\(given=\(\)\) gives masks for frames \[\], but the block has frames \[\(0,\)\]"),
        ((replace(mask, frames=(1,)),), r"masks for frames \[\(1,\)\]"),
        ((replace(mask, keep=mask.keep[:3]),), r"a mask of bool \(3, 4\) for frames \(0,\).*bool \(4, 4\)"),
        ((replace(mask, keep=mask.keep.astype(np.uint8)),), r"a mask of uint8 \(4, 4\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            prune_block(samples(1), GRID, Fixed(given))


def test_the_settings_choose_from_the_registry() -> None:
    schema = PruningSettings.model_json_schema()["properties"]["pruning"]
    assert schema["anyOf"][0]["enum"] == list(POLICIES)
    for name in POLICIES:
        assert PruningSettings(pruning=name).policy == policy_of(name)
    assert PruningSettings().policy == policy_of("default")
    assert PruningSettings(preset="codecsight").policy == policy_of("codecsight")
    assert PruningSettings(preset="codecsight", pruning="default").policy == policy_of("default")
    with pytest.raises(ValidationError, match=r"'nothing' is unknown: choose one of default, codecsight"):
        PruningSettings(pruning="nothing")


@pytest.mark.parametrize("name", POLICIES)
def test_without_pruning_everything_is_kept(name: str) -> None:
    for policy in (keeping_everything(policy_of(name)), PruningSettings(pruning=name, prune=False).policy):
        assert policy.gathers is None
        assert not isinstance(policy, TokenPolicy)
        masks, _ = prune_block(samples(4), GRID, policy)
        assert all(mask.keep.all() for mask in masks)


def test_whole_frames_are_compared_with_none() -> None:
    masks, carry = prune_block(samples(4), GRID, WholeFrames())
    assert all(mask.keep.all() for mask in masks)
    assert sum(mask.anchor for mask in masks) == 1
    assert carry is None


def encoded(*tokens: Sequence[Sequence[float]], anchor: int = 0) -> list[EncodedGroups]:
    """Temporal patches of 2x2 groups, encoded whole."""
    return [
        EncodedGroups(i == anchor, np.ones((2, 2), np.bool_), np.array(part, np.float32))
        for i, part in enumerate(tokens)
    ]


STILL = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, 0.0]]


@dataclass(frozen=True)
class FixedTokens(PrunePolicy, TokenPolicy):
    """A policy that keeps the tokens that it was given."""

    given: tuple[np.ndarray, ...] = ()  # type: ignore[type-arg]

    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        return list(self.given)


def test_masks_of_tokens_that_do_not_fit_are_refused() -> None:
    whole = np.ones((2, 2), np.bool_)
    half = [replace(frame, keep=np.array([[True, True], [False, False]])) for frame in encoded(STILL[:2])]
    for given, frames, words in [
        ((), encoded(STILL), "gives 0 token masks for 1 temporal patches"),
        ((whole[0],), encoded(STILL), r"a mask of bool \(2,\): it must be bool \(2, 2\)"),
        ((whole.astype(np.uint8),), encoded(STILL), "a mask of uint8"),
        ((whole,), half, "keeps tokens that were not encoded"),
    ]:
        with pytest.raises(ValueError, match=words):
            drop_tokens(FixedTokens(given=given), frames)


def page() -> str:
    """docs/pruning.md with the table of the registry."""
    begin, end = "<!-- policies: generated by `make operations` -->", "<!-- end of policies -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    text = PAGE.read_text()
    assert pattern.search(text), f"{PAGE} has lost the marks of its table of policies"
    return pattern.sub(lambda _: f"{begin}\n\n{policies_table()}\n\n{end}", text)


def test_the_page_has_the_registry() -> None:
    assert PAGE.read_text() == page(), "run `make operations`"


if __name__ == "__main__":
    PAGE.write_text(page())
