"""Messages of the wire as the rules see them; what cannot be followed is refused by name."""

from __future__ import annotations

import pytest

from lookout.rules import Outcome, Rule, RuleError
from lookout.rules.messages import rule_of, verdict_of
from lookout.rules.schedule import in_schedule
from lookout.v1 import verdicts_pb2, watches_pb2


def test_a_rule_from_the_wire_has_defaults() -> None:
    rule = rule_of(watches_pb2.Rule())
    assert (rule.threshold, rule.clear, rule.k, rule.n) == (0.5, 0.5, 1, 1)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"k": 3, "n": 2}, "k of n"),
        ({"schedule": [watches_pb2.ScheduleEntry(start="25:00", end="03:00")]}, "25:00"),
        ({"schedule": [watches_pb2.ScheduleEntry(start="01:00", end="03:00", time_zone="Mars/X")]}, "Mars/X"),
        ({"schedule": [watches_pb2.ScheduleEntry(start="01:00+02:00", end="03:00")]}, r"01:00\+02:00"),
        ({"cooldown_s": float("inf")}, "inf"),
        ({"zones": [watches_pb2.Zone(name="door")]}, "door"),
    ],
)
def test_a_rule_that_cannot_be_followed_names_why(bad: dict[str, object], named: str) -> None:
    with pytest.raises(RuleError, match=named):
        rule_of(watches_pb2.Rule(**bad))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [
        ("00:00", "24:00", {0, 9, 23}),
        ("00:00", "00:00", {0, 9, 23}),
        ("22:00", "24:00", {22, 23}),
        ("22:00", "06:00", {22, 23, 24, 29}),
        ("09:00", "09:00", {9, 23, 24, 32}),
    ],
)
def test_hours_of_a_schedule_that_reach_midnight(start: str, end: str, inside: set[int]) -> None:
    """Hours counted from Thursday 1 January 1970, 00:00 UTC; the schedule holds on Thursdays."""
    span = watches_pb2.ScheduleEntry(weekdays=[4], start=start, end=end)
    schedule = rule_of(watches_pb2.Rule(schedule=[span])).schedule
    hours = {0, 5, 8, 9, 21, 22, 23, 24, 29, 30, 32, 33, 47}
    found = {hour for hour in hours if in_schedule(schedule, hour * 3_600_000)}
    assert found >= inside
    assert found == {hour for hour in hours if _in_hours(hour, start, end)}


def _in_hours(hour: int, start: str, end: str) -> bool:
    """The oracle: the hours counted on from Thursday's `start`."""
    first, last = int(start[:2]), int(end[:2])
    return first <= hour < (last if last > first else last + 24)


def test_an_idle_answer_has_an_outcome_of_its_own() -> None:
    verdict = verdicts_pb2.Verdict(outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED, basis="idle")
    assert verdict_of(verdict).outcome is Outcome.IDLE


def test_activity_bits_become_cells() -> None:
    verdict = verdicts_pb2.Verdict(
        outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED,
        activity=bytes([0b10, 0b1]),
        activity_rows=3,
        activity_cols=4,
    )
    activity = verdict_of(verdict).activity
    assert activity is not None
    assert activity.cells == {1, 8}


def test_a_rule_given_takes_the_place_of_the_message_s_own() -> None:
    verdict = verdicts_pb2.Verdict(
        outcome=verdicts_pb2.Verdict.OUTCOME_GAP, rule=watches_pb2.Rule(threshold=1.5)
    )
    assert verdict_of(verdict, Rule()).outcome is Outcome.GAP
    with pytest.raises(RuleError, match="threshold"):
        verdict_of(verdict)


def test_an_unknown_outcome_is_refused_by_name() -> None:
    with pytest.raises(RuleError, match="v-1: outcome 0"):
        verdict_of(verdicts_pb2.Verdict(id="v-1"))


def test_a_condition_that_must_hold_is_part_of_the_rule() -> None:
    question = "How many? [0..5] when count >= 3 for 10 s"
    verdict = verdicts_pb2.Verdict(outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED, question=question)
    assert verdict_of(verdict).rule.hold_ms == 10_000
    assert rule_of(watches_pb2.Rule(), question).hold_ms == 10_000
    assert rule_of(watches_pb2.Rule(), "How many? [0..5]").hold_ms == 0
