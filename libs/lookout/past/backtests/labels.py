"""Compares people's labels of incidents with a question's answers: precision, recall and thresholds."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lookout.rules import Rule
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import LabelScore

Ends = NDArray[np.int64]
Answers = NDArray[np.float64]
_Z95: Final = 1.959964
"""Number of standard deviations around the mean that contain 95 % of a normal distribution."""


def _score(label: Label, answers: Sequence[float], rule: Rule) -> LabelScore:
    """Score a label, given the answers during the label's time.

    The score is the highest threshold at which the rule still reports the labelled incident: the k-th largest
    p(yes) of n consecutive answers, in the n answers where it is largest. Without answers, there is no score.
    """
    score = LabelScore(camera=label.camera, watch=label.watch, incident=label.incident, right=label.right)
    if answers:
        k = min(rule.k, len(answers))  # a label of a single window has fewer answers than the rule counts
        runs = [sorted(answers[max(0, stop - rule.n) : stop]) for stop in range(k, len(answers) + 1)]
        score.score = max(run[-k] for run in runs)
    return score


class LabelScores:
    """Scores labels by a question's answers.

    Args:
        labels: People's labels of moments.
        rule: The rule of the question.
    """

    def __init__(self, labels: Sequence[Label], rule: Rule) -> None:
        self._labels, self._rule = labels, rule
        self._answers = {entry.camera: (array("q"), array("d")) for entry in labels}

    def add(self, camera: str, end_ms: int, p_yes: float) -> None:
        """Add an answer of a camera, about the window that ends at `end_ms`."""
        if (answers := self._answers.get(camera)) is not None:
            answers[0].append(end_ms)
            answers[1].append(p_yes)

    def shift(self, camera: str, by_ms: int) -> None:
        """Move the times of a camera's answers to another clock."""
        if (answers := self._answers.get(camera)) is not None:
            answers[0][:] = array("q", (end_ms + by_ms for end_ms in answers[0]))

    def scores(self) -> list[LabelScore]:
        """Return the labels with their scores."""
        by_camera = {camera: _by_time(*answers) for camera, answers in self._answers.items()}
        return [_score(entry, _during(entry, *by_camera[entry.camera]), self._rule) for entry in self._labels]


def _by_time(ends_ms: array[int], answers: array[float]) -> tuple[Ends, Answers]:
    """Sort a camera's answers by time. They arrive in another order if the camera's clock was set back."""
    ends = np.asarray(ends_ms, np.int64)
    order = np.argsort(ends, kind="stable")
    return ends[order], np.asarray(answers, np.float64)[order]


def _during(label: Label, ends_ms: Ends, answers: Answers) -> list[float]:
    """Return the answers of windows that end in a label's time: after its start, and not after its end."""
    times = label.start.ToMilliseconds(), label.end.ToMilliseconds()
    begin, stop = np.searchsorted(ends_ms, times, side="right")
    return [float(answer) for answer in answers[begin:stop]]


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A share of cases, with its 95 % confidence interval (Wilson, 1927).

    Attributes:
        part: Number of cases that count.
        total: Number of all cases.
    """

    part: int
    total: int

    @property
    def value(self) -> float:
        """The share; NaN if there are no cases."""
        return self.part / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the confidence interval; 0 and 1 if there are no cases."""
        if not self.total:
            return 0.0, 1.0
        n, share, z2 = self.total, self.value, _Z95**2
        middle = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def as_json(self) -> dict[str, Any]:
        """Return the share for JSON; its value is null if there are no cases."""
        low, high = self.interval
        value = round(self.value, 4) if self.total else None
        return {"value": value, "low": round(low, 4), "high": round(high, 4), "of": self.total}


@dataclass(frozen=True, slots=True)
class Quality:
    """Precision and recall of a question at a threshold, measured on labels.

    Attributes:
        threshold: The threshold.
        precision: Share of right incidents among the labelled incidents that the question reports.
        recall: Share of reported incidents among the labelled incidents that are right.
    """

    threshold: float
    precision: LabelShare
    recall: LabelShare

    @property
    def shown_threshold(self) -> str:
        """The threshold as text. A watch with this threshold reports the incidents counted here."""
        return f"{_rounded_down(self.threshold):g}"

    def as_json(self) -> dict[str, Any]:
        """Return the measures for JSON."""
        return {
            "threshold": _rounded_down(self.threshold),
            "precision": self.precision.as_json(),
            "recall": self.recall.as_json(),
        }


def _rounded_down(threshold: float) -> float:
    """Round to six decimals, never upwards, so that a score still reaches the threshold made from it."""
    near = round(threshold, 6)
    return near if near <= threshold else round(near - 1e-6, 6)


def quality(scores: Sequence[LabelScore], threshold: float) -> Quality:
    """Measure precision and recall on the labels that have a score.

    Args:
        scores: Labels with their scores.
        threshold: Scores of at least this are reported.
    """
    known = [score for score in scores if score.HasField("score")]
    reported = [score for score in known if score.score >= threshold]
    right = sum(score.right for score in reported)
    return Quality(
        threshold, LabelShare(right, len(reported)), LabelShare(right, sum(score.right for score in known))
    )


def threshold_for(scores: Sequence[LabelScore], precision: float) -> Quality | None:
    """Return the quality at the lowest threshold that reaches a precision, which has the highest recall; None
    if no threshold reaches it.

    Args:
        scores: Labels with their scores.
        precision: The minimum precision.
    """
    thresholds = sorted({score.score for score in scores if score.HasField("score")})
    qualities = (quality(scores, threshold) for threshold in thresholds)
    return next((own for own in qualities if own.precision.value >= precision), None)
