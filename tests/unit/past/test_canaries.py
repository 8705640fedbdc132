"""Verdicts of a canary next to those of the fleet: what is compared, and what the rule says."""

from __future__ import annotations

import pytest

from lookout.past.canaries import CanaryComparison, CanaryRule, Decision
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule


def verdict(window: int, p_yes: float | None, *, model: str = "old", coverage: float = 1.0) -> Verdict:
    answered = p_yes is not None
    return Verdict(
        id=f"v{window}",
        camera="gate",
        epoch=1,
        window=window,
        watch="fall",
        watch_version=1,
        stream_start_s=8.0 * window,
        stream_end_s=8.0 * window + 40.0,
        outcome=Verdict.OUTCOME_ANSWERED if answered else Verdict.OUTCOME_DEGRADED,
        p_yes=p_yes,
        coverage=coverage,
        rule=Rule(threshold=0.5),
        model_digest=model,
    )


def compared(pairs: list[tuple[float | None, float | None]]) -> CanaryComparison:
    """Windows by what fleet and canary answer."""
    comparison = CanaryComparison()
    for window, (_, p_yes) in enumerate(pairs):
        comparison.add_canary(verdict(window, p_yes, model="new"))
    for window, (p_yes, _) in enumerate(pairs):
        comparison.add_fleet(verdict(window, p_yes))
    return comparison


def test_pairs_are_compared() -> None:
    found = compared([(0.2, 0.3), (0.6, 0.4), (0.9, None), (None, 0.1), (None, None)])
    assert (found.pairs, found.differ, found.gained, found.neither) == (2, 1, 1, 1)
    assert found.unanswered == {"degraded": 1}
    assert found.largest == pytest.approx(0.2)
    assert found.models == ({"old"}, {"new"})
    (entry,) = found.disagreements
    assert (entry.fleet, entry.canary) == (pytest.approx(0.6), pytest.approx(0.4))


def test_windows_that_saw_another_time_are_not_pairs() -> None:
    comparison = CanaryComparison()
    comparison.add_canary(verdict(3, 0.9, coverage=0.5))
    comparison.add_fleet(verdict(3, 0.1))
    assert (comparison.pairs, comparison.differ, comparison.partial) == (0, 0, 1)


def test_windows_before_and_after_the_canary_do_not_count() -> None:
    comparison = CanaryComparison()
    for window in (4, 6):
        comparison.add_canary(verdict(window, 0.1))
    for window in range(10):
        comparison.add_fleet(verdict(window, 0.1))
    comparison.add_fleet(verdict(4, 0.1))
    assert (comparison.pairs, comparison.missing, comparison.doubled, comparison.alone) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("pairs", "decision"),
    [
        ([(0.2, 0.2)] * 9, Decision.WAIT),
        ([(0.2, 0.2)] * 10, Decision.PROMOTE),
        ([(0.2, 0.2)] * 9 + [(0.2, 0.8)], Decision.PROMOTE),
        ([(0.2, 0.2)] * 8 + [(0.2, 0.8)] * 2, Decision.ROLL_BACK),
        ([(0.2, 0.2)] * 9 + [(0.2, None)], Decision.PROMOTE),
        ([(0.2, 0.2)] * 8 + [(0.2, None)] * 2, Decision.ROLL_BACK),
        ([(0.2, None)] * 10, Decision.ROLL_BACK),
        ([(None, 0.2)] * 10, Decision.WAIT),
        ([], Decision.WAIT),
    ],
)
def test_the_rule_decides(pairs: list[tuple[float | None, float | None]], decision: Decision) -> None:
    rule = CanaryRule(windows=10, differ=0.1, unanswered=0.1)
    assert compared(pairs).decide(rule)[0] is decision
