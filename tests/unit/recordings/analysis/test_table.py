"""Answers as a data frame."""

from __future__ import annotations

import dataclasses
import sys
from datetime import datetime, timedelta, timezone

import pytest

from lookout.recordings.analysis import AnalysisError
from lookout.recordings.analysis.results import COLUMNS
from lookout.video.files import Gap
from tests.unit.recordings.analysis.test_clips import analysis

SPANS = [(0.0, 2.0), (2.0, 4.0)]
FOUND = dataclasses.replace(
    analysis("film.mp4", SPANS, [(0.9, 0.1), (0.2, 0.1)]), gaps=(Gap(1_000_000, 1_500_000, 2, "damaged"),)
)


def test_a_table_is_the_rows_with_types() -> None:
    pytest.importorskip("pandas")
    table = FOUND.table()
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == len(FOUND.rows()) == 5
    assert table.query("p_yes > 0.5")[["start_s", "end_s"]].to_numpy().tolist() == [[0.0, 2.0]]
    last = table.iloc[-1]
    assert (last["start_s"], last["gap"]) == (1.0, "damaged")
    assert last[["p_yes", "question", "start_time"]].isna().all()


@pytest.mark.parametrize("hours", [0, 2])
def test_times_by_the_clock_are_times(hours: int) -> None:
    pytest.importorskip("pandas")
    begins = datetime(2026, 5, 1, 23, 59, 59, tzinfo=timezone(timedelta(hours=hours)))
    table = dataclasses.replace(FOUND, begins=begins, begins_from="given").table()
    assert table["end_time"].dt.day.tolist()[:2] == [2, 2]
    assert (table["end_time"] - table["start_time"]).dt.total_seconds().tolist()[0] == 2.0


def test_a_recording_without_answers_is_an_empty_table() -> None:
    pytest.importorskip("pandas")
    table = dataclasses.replace(FOUND, parts=(), gaps=()).table()
    assert (len(table), list(table.columns)) == (0, list(COLUMNS))


def test_without_pandas_an_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(AnalysisError, match=r"needs pandas \(pip install pandas\); rows\(\) returns"):
        FOUND.table()
