"""How the bench of memory compares first tokens of schemes, and late splits with those at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from bench.memory import report
from bench.memory.report import cuts_report
from bench.memory.schemes import PAIRS, SPLITTING, tables, timed
from lookout.models.engines.transformers.memory import MemoryAnswer


def unit(token: list[float], late: float) -> dict[str, object]:
    splitting = {
        name: {"splits": 10, "seconds": 1.0}
        if name in {soon for _, soon in PAIRS}
        else {"splits": 6, "seconds": late}
        for name in SPLITTING
    }
    return {"splitting": splitting, "first token": {"token": token, "ours": [0.01, 0.02]}}


def test_first_tokens_are_compared_turn_by_turn() -> None:
    # The machine was half as fast in the second turn: both took twice as long.
    found = tables([unit([0.03, 0.06], 0.9)])["first token"]
    assert found["token"]["over ours"] == pytest.approx(3.0)
    assert found["token"]["over ours 95 %"] == pytest.approx([3.0, 3.0])
    assert found["token"]["ms"] == pytest.approx(45.0)
    assert found["ours"]["over ours"] == pytest.approx(1.0)


@pytest.mark.long
def test_equal_ways_measure_the_same_whatever_ran_before_them() -> None:
    # The machine is slow for the way that comes after a long one.
    after_long = False

    def answer(seconds: float) -> Callable[[], MemoryAnswer]:
        def run() -> MemoryAnswer:
            nonlocal after_long
            spent, after_long = seconds * (2.0 if after_long else 1.0), seconds > 1.0
            return cast("MemoryAnswer", SimpleNamespace(cost=SimpleNamespace(first_token_s=spent)))

        return run

    names = ("long", "ours", "others", "ours again")
    turns = timed({name: answer(10.0 if name == "long" else 1.0) for name in names}, repeats=200)
    means = {name: sum(turns[name]) / 200 for name in names}
    assert means["ours"] == pytest.approx(means["ours again"], rel=0.1)


def test_what_late_splits_save_is_by_stream() -> None:
    found = tables([unit([0.03, 0.06], 0.9), unit([0.03, 0.06], 0.7)])["splits deferred"]
    row = found["ours against eager"]
    assert (row["splits"], row["at once"], row["splits saved"]) == (12, 20, pytest.approx(0.4))
    assert row["time saved"] == pytest.approx(0.2)
    assert row["time saved 95 %"] == pytest.approx([0.1, 0.3])
    assert row["streams"] == 2


def test_a_stream_rich_in_cuts_is_reported_apart_with_what_was_measured() -> None:
    assert cuts_report({}) == {}
    rows = cuts_report({"quality": [], "schemes": [unit([0.03, 0.06], 0.9)]})
    assert rows == {
        "token": {"first token over ours": pytest.approx(3.0)},
        "ours": {"first token over ours": pytest.approx(1.0)},
    }
    asked = {
        "rows": [{"question": "person", "age": age, "p": {"ours": age, "none": 0.4}} for age in (0.0, 5.0)]
    }
    both = cuts_report({"history": [asked], "schemes": [unit([0.03, 0.06], 0.9)]})
    assert (both["ours"]["chosen"], both["none"]["chosen"]) == (1.0, 0.5)
    assert (both["none"]["first token over ours"], both["token"]["chosen"]) == ("", "")


def test_a_stream_with_cuts_among_the_others_hides_no_stream_rich_in_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("show", "against", "by_layer", "maintenance", "fewer_splits", "less_time"):
        monkeypatch.setattr(report, name, lambda *_: 0.0)
    monkeypatch.setattr(report, "table", lambda _: {})
    monkeypatch.setattr(report, "prefetching", lambda _: 0.5)
    rich = {"schemes": [unit([0.03, 0.06], 0.9)]}
    line = report.report([{"stream": "room-1-cut10"}], [], [], rich, {})
    assert line["tables"]["a cut a minute"].keys() == {"token", "ours"}
