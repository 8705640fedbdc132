"""The score of an incident of the past, against back-tests at other thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, strategies as st

from lookout.past.backtests.results import Backtest, PastIncident
from lookout.rules import Outcome, Rule, WatchVerdict

LOW = 0.2
Windows = Sequence[tuple[int, float | None]]


def incidents(windows: Windows, k: int, n: int, threshold: float) -> list[PastIncident]:
    """The incidents of one camera; windows are epochs with p(yes), None for a gap."""
    backtest = Backtest(Rule(threshold=threshold, k=k, n=n))
    for place, (epoch, p_yes) in enumerate(windows):
        outcome = Outcome.GAP if p_yes is None else Outcome.ANSWERED
        start_ms, end_ms = place * 2000, place * 2000 + 10_000
        verdict = WatchVerdict(
            "gate", epoch, place, "w", 1, outcome, p_yes or 0.0, start_ms, end_ms, backtest.rule
        )
        backtest.add(verdict)
    return backtest.incidents


def overlaps(one: PastIncident, other: PastIncident) -> bool:
    """Whether an incident was raised during another."""
    return other.raised_ms <= one.raised_ms <= other.end_ms


@given(
    st.lists(st.tuples(st.booleans(), st.none() | st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9])), max_size=40),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_a_score_is_the_highest_threshold_at_which_the_rule_reports(
    drawn: list[tuple[bool, float | None]], k: int, more: int
) -> None:
    windows: list[tuple[int, float | None]] = []
    epoch = 1
    for new_epoch, p_yes in drawn:
        epoch += new_epoch and len(windows) % 7 == 0
        windows.append((epoch, p_yes))
    low = incidents(windows, k, k + more, LOW)
    for past in low:
        assert LOW <= past.score <= past.peak
        at_score = incidents(windows, k, k + more, past.score)
        assert any(overlaps(other, past) for other in at_score)
        above = incidents(windows, k, k + more, math.nextafter(past.score, 1.0))
        assert not any(overlaps(other, past) for other in above)
