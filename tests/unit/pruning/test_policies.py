"""The registry of pruning policies: names, settings, the floor, and what a policy of one's own must give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from lookout.pruning import (
    FLEET_POLICIES,
    POLICIES,
    Accumulation,
    Anchors,
    Carry,
    Change,
    DissimilarTokens,
    EncodedGroups,
    GatherMethod,
    GroupedPatches,
    MaskPolicy,
    PatchGrid,
    PolicyError,
    PrunePolicy,
    PruningSettings,
    RandomPolicy,
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


@pytest.mark.parametrize(("share", "groups"), [(0.25, 4), (0.5, 8), (1.0, 16), (0.001, 1)])
def test_the_floor_keeps_its_share_elsewhere_in_every_frame(share: float, groups: int) -> None:
    masks, _ = prune_block(samples(6), GRID, RandomPolicy(share))
    assert [mask.kept for mask in masks] == [16] + 5 * [groups]
    places = {mask.keep.tobytes() for mask in masks[1:]}
    assert len(places) == (1 if share == 1 else 5 if groups > 1 else len(places))
    other, _ = prune_block(samples(6), GRID, RandomPolicy(share, seed=1))
    assert share == 1 or any((a.keep != b.keep).any() for a, b in zip(masks, other, strict=True))


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"share": float("nan")}, {"seed": -1}])
def test_a_floor_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=f"{next(iter(wrong))} .* of a random policy"):
        RandomPolicy(**wrong)  # type: ignore[arg-type]


def test_masks_that_do_not_fit_are_refused_with_the_policys_name() -> None:
    (mask,), _ = prune_block(samples(1), GRID, RandomPolicy())
    for given, words in [
        ((), r"Fixed\(given=\(\)\) gives masks of frames \[\] for a block of frames \[\(0,\)\]"),
        ((replace(mask, frames=(1,)),), r"masks of frames \[\(1,\)\]"),
        ((replace(mask, keep=mask.keep[:3]),), r"a mask of bool \(3, 4\) for frames \(0,\).*bool \(4, 4\)"),
        ((replace(mask, keep=mask.keep.astype(np.uint8)),), r"a mask of uint8 \(4, 4\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            prune_block(samples(1), GRID, Fixed(given))


def test_the_settings_choose_from_the_registry() -> None:
    schema = PruningSettings.model_json_schema()["properties"]["pruning"]
    assert schema["anyOf"][0]["enum"] == list(FLEET_POLICIES)
    for name in FLEET_POLICIES:
        assert PruningSettings(pruning=name).policy == policy_of(name)
    assert PruningSettings().policy == policy_of("default")
    assert PruningSettings(preset="codecsight").policy == policy_of("codecsight")
    assert PruningSettings(preset="codecsight", pruning="default").policy == policy_of("default")
    with pytest.raises(
        ValidationError, match=r"'nothing' is unknown: choose one of default, codecsight, random, evs"
    ):
        PruningSettings(pruning="nothing")


def test_parameters_of_another_policy_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"pruning policy 'random' has no tau, luma_tau: leave them unset"
    ):
        PruningSettings(pruning="random", tau=1.0, luma_tau=3.0)


@pytest.mark.parametrize("name", POLICIES)
def test_without_pruning_everything_is_kept(name: str) -> None:
    policies = [keeping_everything(policy_of(name))]
    if name in FLEET_POLICIES:
        policies.append(PruningSettings(pruning=name, prune=False).policy)
    for policy in policies:
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
MOVED = [[1.0, 0.0], [2.0, 0.0], [1.0, 0.5], [5.0, 0.0]]  # the second turned wholly, the third a little


def test_dissimilar_tokens_are_kept_over_the_whole_block() -> None:
    masks = drop_tokens(DissimilarTokens(0.25), encoded(STILL, STILL, MOVED))
    assert [mask.tolist() for mask in masks] == [
        [[True, True], [True, True]],  # the anchor
        [[False, False], [False, False]],  # nothing changed: another length is the same direction
        [[False, True], [True, False]],
    ]
    masks = drop_tokens(DissimilarTokens(0.25), encoded(MOVED, STILL, STILL, anchor=1))
    assert [int(mask.sum()) for mask in masks] == [4, 4, 1], "what stands before the anchor is kept whole"
    assert [mask.sum() for mask in drop_tokens(DissimilarTokens(1.0), encoded(STILL, STILL))] == [4, 4]
    assert drop_tokens(DissimilarTokens(), encoded(STILL))[0].all()


def test_dissimilar_tokens_are_compared_with_what_was_last_encoded_at_their_place() -> None:
    first, last = encoded(STILL, MOVED)
    keep = np.array([[True, True], [False, True]])
    between = EncodedGroups(False, keep, np.array([STILL[0], MOVED[1], STILL[3]], np.float32))
    masks = drop_tokens(DissimilarTokens(0.25), [first, between, last])
    assert masks[0].all()
    assert masks[1].tolist() == [[False, True], [False, False]]  # the second turned here, not in the last
    assert masks[2].tolist() == [[False, False], [True, False]]  # the third turned since the anchor
    masks = drop_tokens(DissimilarTokens(1.0), [first, between, last])
    assert [mask.tolist() for mask in masks] == [frame.keep.tolist() for frame in (first, between, last)]
    again = EncodedGroups(True, last.keep, last.tokens)
    assert drop_tokens(DissimilarTokens(0.25), [first, between, again])[2].all(), "every anchor is whole"


def test_what_is_encoded_for_dissimilar_tokens_is_decided_by_another_policy() -> None:
    rule = policy_of("codecsight")
    policy = DissimilarTokens(0.25, rule)
    assert (policy.gathers, policy.residual) == (rule.gathers, rule.residual)
    for own, other in zip(
        prune_block(samples(4), GRID, DissimilarTokens(0.25, PrunePolicy()))[0],
        prune_block(samples(4), GRID, PrunePolicy())[0],
        strict=True,
    ):
        assert np.array_equal(own.keep, other.keep)


def test_a_fleet_refuses_a_policy_that_drops_tokens_after_the_tower() -> None:
    assert set(POLICIES) - set(FLEET_POLICIES) == {"evs"}
    with pytest.raises(ValidationError, match=r"'evs' drops tokens after the vision tower.* Pipeline"):
        PruningSettings(pruning="evs")


@dataclass(frozen=True)
class FixedTokens(RandomPolicy, TokenPolicy):
    """A policy that keeps the tokens that it was given."""

    given: tuple[np.ndarray, ...] = ()  # type: ignore[type-arg]

    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        return list(self.given)


def test_masks_of_tokens_that_do_not_fit_are_refused() -> None:
    whole = np.ones((2, 2), np.bool_)
    half = [replace(frame, keep=np.array([[True, True], [False, False]])) for frame in encoded(STILL[:2])]
    for given, frames, words in [
        ((), encoded(STILL), "gives 0 masks of tokens for 1 temporal patches"),
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
