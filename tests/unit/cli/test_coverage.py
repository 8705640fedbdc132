"""Coverage: every second of a watch has one outcome, and time without a verdict is named."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lookout.cli.coverage import UNSEEN, with_unseen
from lookout.rules import Outcome, Rule, Verdict, coverage_intervals

STRIDE_MS = 2000


def verdict(window: int, outcome: Outcome) -> Verdict:
    end = (window + 1) * STRIDE_MS
    return Verdict("door", 1, window, "fall", 1, outcome, 0.0, max(0, end - 10_000), end, Rule())


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
