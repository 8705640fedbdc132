"""Coverage: the outcome of every interval of a watch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lookout.rules.types import Outcome, WatchVerdict


@dataclass(frozen=True, slots=True)
class CoverageInterval:
    """The outcome of one watch on one camera in [start_ms, end_ms), Unix milliseconds."""

    camera: str
    watch: str
    start_ms: int
    end_ms: int
    outcome: Outcome


def coverage_intervals(answers: Iterable[WatchVerdict]) -> list[CoverageInterval]:
    """Return disjoint intervals per camera and watch, in time order; neighbours with the same outcome are
    joined.

    Windows overlap, so each one accounts only for time that no earlier window covered. Time without an
    outcome was not analysed, so it is absent.
    """
    newest: dict[tuple[str, str], CoverageInterval] = {}
    intervals: list[CoverageInterval] = []
    # Sorted by end, because each window may claim only time after the end of the previous window.
    for answer in sorted(answers, key=lambda a: (a.camera, a.watch, a.end_ms)):
        key = (answer.camera, answer.watch)
        last = newest.get(key)
        start = max(answer.start_ms, last.end_ms) if last else answer.start_ms
        if start >= answer.end_ms:
            continue
        if last and last.end_ms == start and last.outcome is answer.outcome:
            newest[key] = replace(last, end_ms=answer.end_ms)
            continue
        if last:
            intervals.append(last)
        newest[key] = CoverageInterval(answer.camera, answer.watch, start, answer.end_ms, answer.outcome)
    return sorted([*intervals, *newest.values()], key=lambda i: (i.camera, i.watch, i.start_ms))
