"""Finds spans that look unlike what their camera usually shows at that hour. It needs only landmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from lookout.past.find.spans import PastSpan
from lookout.past.memory.ranking import CameraPast
from lookout.past.memory.types import Ints

LEAST_SCORE: Final = 2.0
"""Minimum score of an unusual span. A score is a distance from the mean, divided by the root mean square
distance."""
LEAST_CLUSTERS: Final = 8
"""Minimum number of clusters around an hour. Hours with fewer are skipped, because they do not show what is
usual."""
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class UnusualSpan:
    """An unusual span. `score` is its distance from what is usual, divided by the root mean square
    distance."""

    span: PastSpan
    score: float


def unusual_spans(
    pasts: Mapping[str, CameraPast],
    length_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
    limit: int = 20,
) -> list[UnusualSpan]:
    """Return the most unusual spans of cameras, most unusual first; adjacent spans are joined into one.

    What is usual at an hour of the day (UTC) is the mean of the camera's clusters in that hour and the two
    adjacent hours, over all days in the memory, weighted by the clusters' tokens.

    Args:
        pasts: Pasts by camera.
        length_us: Length of a span in microseconds.
        since_us: Only spans that end after this time; None: all.
        until_us: Only spans that begin before this time; None: all.
        limit: Maximum number of spans to return.
    """
    spans: list[UnusualSpan] = []
    for camera, past in pasts.items():
        best: dict[int, float] = defaultdict(float)
        for begin_us, end_us, score in _scored(past):
            for number in range(begin_us // length_us, end_us // length_us + 1):
                after = since_us is None or (number + 1) * length_us > since_us
                if score >= LEAST_SCORE and after and (until_us is None or number * length_us < until_us):
                    best[number] = max(best[number], score)
        spans += _joined(camera, best, length_us)
    return sorted(spans, key=lambda unusual: (-unusual.score, unusual.span))[:limit]


def _scored(past: CameraPast) -> list[tuple[int, int, float]]:
    """Return begin, end (Unix microseconds) and score of each cluster."""
    if not past.landmarks:
        return []
    keys = np.concatenate([mark.keys for mark in past.landmarks], 1).astype(np.float32)
    begin = np.concatenate([mark.begin_us for mark in past.landmarks])
    end = np.concatenate([mark.end_us for mark in past.landmarks])
    tokens = np.concatenate([mark.tokens for mark in past.landmarks]).astype(np.float32)
    hours: Ints = begin // _HOUR_US % 24
    scores = np.zeros(len(begin))
    for hour in np.unique(hours):
        near = np.isin((hours - hour) % 24, (0, 1, 23))
        if near.sum() < LEAST_CLUSTERS:
            continue
        weights = tokens[near] / tokens[near].sum()
        mean = (keys[:, near] * weights[:, None]).sum(1, keepdims=True)
        usual = np.sqrt((((keys[:, near] - mean) ** 2).sum(2) * weights).sum(1, keepdims=True))
        own = hours == hour
        distance = np.sqrt(((keys[:, own] - mean) ** 2).sum(2))
        scores[own] = (distance / np.maximum(usual, 1e-6)).mean(0)
    return list(zip(begin.tolist(), end.tolist(), scores.tolist(), strict=True))


def _joined(camera: str, scores: Mapping[int, float], length_us: int) -> list[UnusualSpan]:
    """Return unusual spans, given scores by span number. Adjacent spans are joined, with their highest
    score."""
    runs: list[list[int]] = []
    for number in sorted(scores):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        UnusualSpan(
            PastSpan(camera, run[0] * length_us, (run[-1] + 1) * length_us),
            max(scores[number] for number in run),
        )
        for run in runs
    ]
