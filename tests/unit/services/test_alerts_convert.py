"""The alerts service's state survives its checkpoint, and what cannot be followed is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookout.rules import Coverage, Incident, Outcome, RuleError, WatchState
from lookout.services.alerts import convert
from lookout.v1 import verdicts_pb2, watches_pb2
from tests.clock import at

frames = st.builds(
    lambda time, row: verdicts_pb2.Evidence(time=at(time), row=row).SerializeToString(deterministic=True),
    st.integers(0, 10**12),
    st.integers(0, 40),
)
incidents = st.builds(
    Incident,
    id=st.text("abcdef0123456789", min_size=1, max_size=8),
    opened_ms=st.integers(0, 2**40),
    peak=st.floats(0, 1),
    score=st.floats(0, 1),
    windows=st.integers(0, 1000),
    reported_peak=st.floats(0, 1),
    evidence=st.lists(st.tuples(st.floats(0, 1), st.lists(frames, max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    coverage=st.builds(Coverage, answered=st.integers(0, 2**40), gap=st.integers(0, 2**40)),
)
states = st.builds(
    WatchState,
    version=st.integers(0, 100),
    epoch=st.integers(0, 2**40),
    window=st.integers(-1, 2**40),
    recent=st.lists(st.booleans(), max_size=64).map(tuple),
    newest_ms=st.integers(0, 2**42),
    cooldown_until_ms=st.integers(0, 2**42),
    incident=st.none() | incidents,
)


@given(states)
def test_state_survives_the_checkpoint(state: WatchState) -> None:
    assert convert.unpack(convert.pack("fall", "Is anyone lying?", state)) == state


def test_a_rule_from_the_wire_has_defaults() -> None:
    rule = convert.rule(watches_pb2.Rule())
    assert (rule.threshold, rule.clear, rule.k, rule.n) == (0.5, 0.5, 1, 1)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"k": 3, "n": 2}, "k of n"),
        ({"schedule": [watches_pb2.ScheduleEntry(start="25:00", end="03:00")]}, "25:00"),
        ({"schedule": [watches_pb2.ScheduleEntry(start="01:00", end="03:00", time_zone="Mars/X")]}, "Mars/X"),
        ({"zones": [watches_pb2.Zone(name="door")]}, "door"),
    ],
)
def test_a_rule_that_cannot_be_followed_names_why(bad: dict[str, object], named: str) -> None:
    with pytest.raises(RuleError, match=named):
        convert.rule(watches_pb2.Rule(**bad))  # type: ignore[arg-type]


def test_an_idle_answer_is_told_apart() -> None:
    verdict = verdicts_pb2.Verdict(outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED, basis="idle")
    assert convert.answer(verdict).outcome is Outcome.IDLE


def test_activity_bits() -> None:
    verdict = verdicts_pb2.Verdict(
        outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED,
        activity=bytes([0b10, 0b1]),
        activity_rows=3,
        activity_cols=4,
    )
    activity = convert.answer(verdict).activity
    assert activity is not None
    assert activity.cells == {1, 8}
