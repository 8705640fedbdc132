"""Precision, recall and thresholds from what people said."""

from __future__ import annotations

import math

import pytest

from lookout.past.backtests.labels import LabelShare, quality, threshold_for
from lookout.rules import Rule
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import LabelScore
from lookout.v1.verdicts_pb2 import Verdict
from tests.unit.past.backtests.scores import score_of


def verdict(end_s: int, p_yes: float | None) -> Verdict:
    verdict = Verdict(camera="yard", p_yes=p_yes)
    verdict.start.FromSeconds(max(0, end_s - 10))
    verdict.end.FromSeconds(end_s)
    return verdict


def label(begin_s: int, end_s: int, right: bool = True) -> Label:
    label = Label(camera="yard", watch="lying", incident="i", right=right)
    label.start.FromSeconds(begin_s)
    label.end.FromSeconds(end_s)
    return label


def score(value: float | None, right: bool) -> LabelScore:
    return LabelScore(right=right, score=value)


SCORES = [score(0.9, True), score(0.8, True), score(0.7, False), score(0.6, True), score(None, True)]


@pytest.mark.parametrize(
    ("k", "n", "expected"),
    [(1, 1, 0.9), (2, 2, 0.4), (2, 3, 0.7), (3, 3, 0.4)],
)
def test_a_score_is_the_highest_threshold_at_which_the_rule_reports(k: int, n: int, expected: float) -> None:
    answers = [0.3, 0.9, 0.4, 0.7]
    verdicts = [verdict(12 + 2 * place, p_yes) for place, p_yes in enumerate(answers)]
    outside = [verdict(10, 0.99), *verdicts, verdict(20, 0.99)]
    own = score_of(label(10, 18), outside, Rule(threshold=0.5, k=k, n=n))
    assert own.score == pytest.approx(expected)


def test_a_label_on_one_window_is_scored_by_it() -> None:
    rule = Rule(threshold=0.5, k=2, n=3)
    assert score_of(label(10, 20), [verdict(20, 0.8)], rule).score == pytest.approx(0.8)
    assert not score_of(label(10, 20), [verdict(30, 0.8), verdict(15, None)], rule).HasField("score")


def test_precision_and_recall_count_labels_that_have_a_window() -> None:
    own = quality(SCORES, 0.65)
    assert (own.precision, own.recall) == (LabelShare(2, 3), LabelShare(2, 3))


def test_the_threshold_for_a_precision_is_the_lowest_one() -> None:
    for wanted, threshold in ((0.7, 0.6), (0.75, 0.6), (0.8, 0.8), (1.0, 0.8)):
        best = threshold_for(SCORES, wanted)
        assert best is not None
        assert best.threshold == pytest.approx(threshold)
    assert threshold_for([score(0.9, False)], 0.5) is None
    assert threshold_for([], 0.0) is None


@pytest.mark.parametrize("sure", [0.9986999, 0.7000004999, 1.0, 0.1 + 0.2])
def test_a_threshold_that_is_written_reports_what_it_was_found_by(sure: float) -> None:
    best = threshold_for([score(sure, True)], 0.5)
    assert best is not None
    written = best.as_json()["threshold"]
    assert written <= sure
    assert quality([score(sure, True)], written).recall.value == 1
    assert float(best.shown_threshold) == written


def test_intervals_are_those_of_wilson() -> None:
    # Newcombe 1998, table I: 15 of 148 and 81 of 263
    assert LabelShare(15, 148).interval == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert LabelShare(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert LabelShare(0, 20).interval == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert LabelShare(3, 3).interval[1] == pytest.approx(1.0)
    assert LabelShare(0, 0).interval == (0.0, 1.0)
    assert math.isnan(LabelShare(0, 0).value)
    assert LabelShare(0, 0).as_json()["value"] is None
