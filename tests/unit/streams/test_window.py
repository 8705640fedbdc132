"""Which blocks are a window, and why a window has no answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookout.streams import BlockFacts, Cause, NoAnswer, NoAnswerKind, WindowRule
from lookout.v1 import lineage_pb2

RULE = WindowRule(blocks=3, max_damage=0.5)
WHOLE = BlockFacts(0, 4, 4, grid=(4, 4))
EMPTY = BlockFacts(0, 4, 0)


@pytest.mark.parametrize(
    ("indices", "length"),
    [([0], 1), ([0, 1], 2), ([0, 1, 2, 3], 3), ([0, 2], 1), ([0, 2, 3], 2), ([7, 8, 9], 3), ([1, 2, 9], 1)],
)
def test_a_window_is_the_newest_consecutive_blocks(indices: list[int], length: int) -> None:
    assert RULE.length(indices) == length


def test_a_window_that_an_empty_block_closes_has_no_answer() -> None:
    assert RULE.refusal([WHOLE, EMPTY, WHOLE]) is None
    assert RULE.refusal([WHOLE, WHOLE, EMPTY]) == NoAnswer(Cause.NO_FRAMES, "no frames")
    late = NoAnswer(Cause.LATE, "late: out of order")
    assert RULE.refusal([WHOLE, replace(EMPTY, missing=late)]) == late
    assert RULE.coverage([WHOLE, EMPTY, WHOLE]) == pytest.approx(2 / 3)
    assert RULE.damage([WHOLE, EMPTY, WHOLE]) == 0


def test_foreign_and_lost_blocks_are_not_seen_and_a_foreign_one_closes_no_window() -> None:
    other = NoAnswer(Cause.OTHER_MODEL, "encoded by m0")
    foreign, lost = replace(WHOLE, foreign=other, grid=(8, 8)), replace(WHOLE, lost=True, grid=(9, 9))
    assert RULE.refusal([foreign, lost, WHOLE]) is None
    assert RULE.coverage([foreign, lost, WHOLE]) == pytest.approx(1 / 3)
    assert RULE.refusal([WHOLE, foreign]) == other
    mixed = RULE.refusal([replace(WHOLE, grid=(8, 8)), WHOLE])
    assert mixed is not None
    assert mixed.cause is Cause.MIXED_GRIDS
    assert "8x8 and 4x4" in mixed.reason


def test_damage_counts_what_a_damaged_block_lost_but_no_slow_camera() -> None:
    slow = replace(WHOLE, frames=2)
    assert (RULE.damage([slow, slow]), RULE.coverage([slow, slow])) == (0, 0.5)
    torn = replace(WHOLE, frames=2, damaged=1)
    assert (RULE.damage([WHOLE, torn]), RULE.coverage([WHOLE, torn])) == (3 / 8, 5 / 8)
    assert RULE.refusal([WHOLE, torn]) is None
    refused = RULE.refusal([torn])
    assert refused is not None
    assert (refused.cause, refused.kind) == (Cause.DAMAGED, NoAnswerKind.DEGRADED)


def test_every_cause_is_on_the_wire() -> None:
    names = {f"CAUSE_{cause.name}" for cause in Cause}
    assert names | {"CAUSE_UNSPECIFIED"} == set(lineage_pb2.Cause.keys())
    assert {cause.kind for cause in Cause} == set(NoAnswerKind)
