"""Coverage: every second of a watch has one outcome, and time without a verdict is named."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from lookout.cli.coverage import UNSEEN, coverage_table, remarks, with_unseen
from lookout.rules import Outcome, Rule, WatchVerdict, coverage_intervals
from lookout.v1.lineage_pb2 import CAUSE_DAMAGED, CAUSE_LATE
from lookout.v1.verdicts_pb2 import Verdict as Message

STRIDE_MS = 2000


def verdict(window: int, outcome: Outcome) -> WatchVerdict:
    end = (window + 1) * STRIDE_MS
    return WatchVerdict("door", 1, window, "fall", 1, outcome, 0.0, max(0, end - 10_000), end, Rule())


def test_time_without_a_verdict_is_unseen() -> None:
    found = with_unseen(coverage_intervals([verdict(0, Outcome.ANSWERED), verdict(9, Outcome.SKIPPED)]))
    assert [(each["outcome"], each["seconds"]) for each in found] == [
        ("answered", 2.0),
        (UNSEEN, 8.0),
        ("skipped", 10.0),
    ]
    assert found[1]["start"] == "1970-01-01T00:00:02.000Z"


@given(st.dictionaries(st.integers(0, 60), st.sampled_from(list(Outcome)), min_size=1, max_size=30))
def test_every_second_is_told_once(outcomes: dict[int, Outcome]) -> None:
    found = with_unseen(coverage_intervals([verdict(w, outcome) for w, outcome in outcomes.items()]))
    assert all(before["end"] == after["start"] for before, after in pairwise(found))
    first, last = min(outcomes), max(outcomes)
    begin = max(0, (first + 1) * STRIDE_MS - 10_000)
    assert sum(each["seconds"] for each in found) == ((last + 1) * STRIDE_MS - begin) / 1000


def test_time_behind_a_closed_gate_and_idle_time_was_watched() -> None:
    watched = (Outcome.ANSWERED, Outcome.IDLE, Outcome.GATED)
    for outcome in Outcome:
        table = coverage_table(with_unseen(coverage_intervals([verdict(0, outcome)])))
        assert list(table.columns[-1].cells) == ["100.0%" if outcome in watched else "0.0%"]


def test_what_was_not_answered_and_what_was_damaged_is_said_by_camera() -> None:
    """Two watches of one window count once."""
    messages = [
        Message(camera="gate", epoch=1, window=3, watch=watch, cause=cause, damaged=0.7)
        for watch in ("fall", "fire")
        for cause in [CAUSE_DAMAGED]
    ]
    messages += [Message(camera="gate", epoch=1, window=window, cause=CAUSE_LATE) for window in (4, 6)]
    messages += [Message(camera="door", epoch=1, window=1, damaged=0.1), Message(camera="yard", window=2)]
    assert remarks(messages) == [
        "door: 1 window answered with damaged frames",
        "gate: 1 window without an answer (damaged), 2 windows without an answer (late)",
    ]
