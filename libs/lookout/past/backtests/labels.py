"""What people said about incidents, alongside what a question says: precision, recall, thresholds."""

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
"""Of a normal distribution, 95 % lie within so many standard deviations."""


def _score(label: Label, answers: Sequence[float], rule: Rule) -> LabelScore:
    """How sure a question is of what a label is about, by the answers of the label's time.

    The score is the highest threshold at which the rule still reports it: of the last n answers of its time,
    the k-th largest p(yes) at least.
    """
    score = LabelScore(camera=label.camera, watch=label.watch, incident=label.incident, right=label.right)
    if answers:
        k = min(rule.k, len(answers))  # a label on one window has fewer answers than the rule counts
        runs = [sorted(answers[max(0, stop - rule.n) : stop]) for stop in range(k, len(answers) + 1)]
        score.score = max(run[-k] for run in runs)
    return score


class LabelScores:
    """Scores labels with verdicts that come by, camera by camera in the order of time.

    Args:
        labels: What people said.
        rule: Of the question.
    """

    def __init__(self, labels: Sequence[Label], rule: Rule) -> None:
        self._labels, self._rule = labels, rule
        self._answers = {entry.camera: (array("q"), array("d")) for entry in labels}

    def add(self, camera: str, end_ms: int, p_yes: float) -> None:
        """Take the next answer of a camera: of a window that ends at `end_ms`."""
        if (answers := self._answers.get(camera)) is not None:
            answers[0].append(end_ms)
            answers[1].append(p_yes)

    def scores(self) -> list[LabelScore]:
        """The labels with their scores."""
        by_camera = {camera: _by_time(*answers) for camera, answers in self._answers.items()}
        return [_score(entry, _during(entry, *by_camera[entry.camera]), self._rule) for entry in self._labels]


def _by_time(ends_ms: array[int], answers: array[float]) -> tuple[Ends, Answers]:
    """Answers of a camera in the order of time; a clock that was set back brings them in another."""
    ends = np.asarray(ends_ms, np.int64)
    order = np.argsort(ends, kind="stable")
    return ends[order], np.asarray(answers, np.float64)[order]


def _during(label: Label, ends_ms: Ends, answers: Answers) -> list[float]:
    """The answers of windows that end in a label's time: after its start, at its end at last."""
    times = label.start.ToMilliseconds(), label.end.ToMilliseconds()
    begin, stop = np.searchsorted(ends_ms, times, side="right")
    return [float(answer) for answer in answers[begin:stop]]


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A share of a few cases, with its interval of 95 % (Wilson, 1927).

    Attributes:
        part: Cases that count.
        total: All of them.
    """

    part: int
    total: int

    @property
    def value(self) -> float:
        """The share; not a number where there are no cases."""
        return self.part / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Its bounds; everything is possible where there are no cases."""
        if not self.total:
            return 0.0, 1.0
        n, share, z2 = self.total, self.value, _Z95**2
        middle = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def as_json(self) -> dict[str, Any]:
        """For JSON; a share of nothing is null."""
        low, high = self.interval
        value = round(self.value, 4) if self.total else None
        return {"value": value, "low": round(low, 4), "high": round(high, 4), "of": self.total}


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a question is at a threshold, as labels say.

    Attributes:
        threshold: The threshold.
        precision: Of the labelled incidents that it reports, those that are right.
        recall: Of those that are right, the ones that it reports.
    """

    threshold: float
    precision: LabelShare
    recall: LabelShare

    @property
    def shown_threshold(self) -> str:
        """The threshold for people; given to a watch, it reports what was counted here."""
        return f"{_rounded_down(self.threshold):g}"

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "threshold": _rounded_down(self.threshold),
            "precision": self.precision.as_json(),
            "recall": self.recall.as_json(),
        }


def _rounded_down(threshold: float) -> float:
    """Six decimals, never above: a score that is rounded up would not reach itself."""
    near = round(threshold, 6)
    return near if near <= threshold else round(near - 1e-6, 6)


def quality(scores: Sequence[LabelScore], threshold: float) -> Quality:
    """Precision and recall over the labels that have a window.

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
    """The lowest threshold with a wanted precision: the one that misses least, or None.

    Args:
        scores: Labels with their scores.
        precision: The least precision.
    """
    thresholds = sorted({score.score for score in scores if score.HasField("score")})
    qualities = (quality(scores, threshold) for threshold in thresholds)
    return next((own for own in qualities if own.precision.value >= precision), None)
