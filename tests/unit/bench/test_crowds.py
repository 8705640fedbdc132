"""Masks that keep more where many move, and how they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from bench.answered import Answered
from bench.codecsight.scores import Answers
from bench.codecsight.streams import Outcome
from bench.crowds.compare import comparison, f1_of, from_dense, scores
from bench.crowds.masks import (
    ONE_A_STRIDE,
    Anywhere,
    EvenFrames,
    Floor,
    NewestFrame,
    Widened,
)
from lookout.pruning import PatchGrid, PrunePolicy, Sample, TemporalMask, prune_block
from watchbench.questions import QUESTIONS

GRID = PatchGrid.merged(8, 8, 14, 2)  # 16 groups


def samples(*corners: tuple[tuple[int, int], ...]) -> list[Sample]:
    """Pictures with bright groups at some places; the first is grey."""
    out = [np.full((112, 112, 3), 100, np.uint8)]
    for number, places in enumerate(corners):
        picture = out[0].copy()
        for row, col in places:
            picture[28 * row + 4 : 28 * row + 24, 28 * col + 4 : 28 * col + 24] = 160 + 40 * number
        out.append(picture)
    return [Sample(picture) for picture in out]


MANY = samples(((0, 0),), ((0, 0), (3, 3)), (), ())


def masks_of(rule: Widened | PrunePolicy, shown: list[Sample] = MANY) -> list[TemporalMask]:
    """The masks of one block."""
    return prune_block(shown, GRID, rule)[0]


def kept(rule: Widened | PrunePolicy, shown: list[Sample] = MANY) -> list[int]:
    """Groups kept of every frame."""
    return [mask.kept for mask in masks_of(rule, shown)]


@pytest.mark.parametrize(
    "rule",
    [
        Anywhere(0.3),
        Floor(3.5),
        EvenFrames(1.5),
        NewestFrame(),
    ],
)
def test_a_widened_rule_keeps_what_the_default_keeps_and_more_and_a_replay_the_same(rule: Widened) -> None:
    plain, wide, again = masks_of(ONE_A_STRIDE), masks_of(rule), masks_of(rule)
    assert all((own.keep | mask.keep == own.keep).all() for own, mask in zip(wide, plain, strict=True))
    assert sum(mask.kept for mask in wide) > sum(mask.kept for mask in plain)
    assert [mask.keep.tolist() for mask in wide] == [mask.keep.tolist() for mask in again]


def test_simple_rules_keep_what_they_are_told() -> None:
    assert kept(Floor(3.0)) == [16, 3, 3, 3, 3]
    assert kept(EvenFrames(1.0)).count(16) == 2
    assert kept(EvenFrames(4.0)) == [16] * 5
    assert kept(Anywhere(1.0)) == [16] * 5
    assert kept(NewestFrame()) == [16, 1, 2, 2, 16]


def outcome(p: float, flops: float) -> Outcome:
    """Two windows of one answer."""
    return Outcome(Answered(np.full((2, len(QUESTIONS)), p), np.full(2, flops), np.arange(2)), 0.1)


def test_rules_are_paired_by_camera_with_the_one_they_are_compared_with() -> None:
    cameras = [
        {"full": outcome(0.9, 10.0), "default": outcome(0.9 if n else 0.1, 1.0), "other": outcome(0.1, 2.0)}
        for n in range(2)
    ]
    yes = np.ones((2, len(QUESTIONS)), np.bool_)
    rows = comparison(cameras, [(yes, yes)] * 2, "default")
    assert rows["default"]["crowd"] == pytest.approx(2 / 3, abs=1e-3)
    assert (rows["other"]["crowd"], rows["full"]["crowd"]) == (0.0, 1.0)
    assert rows["other"]["crowd: default less it"] == pytest.approx(2 / 3, abs=1e-3)
    assert rows["other"]["crowd: 95 %"] == [0.0, 1.0]
    assert rows["other"]["FLOPs of full"] == pytest.approx(0.2)
    assert from_dense(cameras, "default") == pytest.approx([0.8, 0.0])


def test_questions_without_a_case_do_not_count() -> None:
    none = Answers(*(np.zeros(2, np.bool_) for _ in range(2)), np.ones(2, np.bool_))
    hit = Answers(*(np.ones(2, np.bool_) for _ in range(3)))
    assert float(f1_of(scores([[none, hit]]).sum(0))) == 1.0
