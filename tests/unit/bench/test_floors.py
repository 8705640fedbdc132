"""The policies that comparisons need: what the floor keeps, and which tokens differ most."""

from __future__ import annotations

import numpy as np
import pytest

from bench.floors import DissimilarTokens, RandomPolicy
from lookout.pruning import (
    EncodedGroups,
    MaskPolicy,
    PatchGrid,
    PolicyError,
    PrunePolicy,
    drop_tokens,
    policy_of,
    prune_block,
)
from tests.unit.pruning.test_policies import GRID, PAIRS, STILL, encoded, samples

MOVED = [[1.0, 0.0], [2.0, 0.0], [1.0, 0.5], [5.0, 0.0]]  # the second turned wholly, the third a little


@pytest.mark.parametrize("grid", [GRID, PAIRS])
@pytest.mark.parametrize("policy", [RandomPolicy(), DissimilarTokens()], ids=repr)
def test_a_block_has_one_whole_anchor_and_is_decided_the_same_again(
    policy: MaskPolicy, grid: PatchGrid
) -> None:
    block = samples(5, damaged=[0])
    masks, _ = prune_block(block, grid, policy)
    again, _ = prune_block(block, grid, policy)
    assert [mask.anchor for mask in masks] == [i == 1 for i in range(len(masks))]
    assert masks[0].keep.all()
    assert masks[1].keep.all()
    assert all(np.array_equal(one.keep, other.keep) for one, other in zip(masks, again, strict=True))


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
