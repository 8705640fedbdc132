"""Times on the command line."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given, strategies as st

from lookout.cli.fleet_jobs import take_times
from lookout.cli.formats import clock
from lookout.cli.options import CliError, Position
from lookout.cli.times import is_length, parse_moment, parse_offset, parse_since, parse_span, parse_until
from lookout.recordings.jobs import job_digest
from lookout.v1.recordings_pb2 import BacktestJob, RecordingJob
from lookout.v1.watches_pb2 import Watch


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 599).map(lambda tenths: tenths / 10))
def test_times_as_people_write_them(hours: int, minutes: int, rest: float) -> None:
    assert parse_offset(f"{hours}:{minutes}:{rest!r}", "--since") == pytest.approx(
        3600 * hours + 60 * minutes + rest
    )
    assert parse_offset(clock(60 * minutes + rest), "--since") == pytest.approx(60 * minutes + rest)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90:00", 5400), ("2.5", 2.5), (None, None)])
def test_an_offset_is_read_as_seconds(text: str | None, seconds: float | None) -> None:
    assert parse_offset(text, "--since") == seconds


@pytest.mark.parametrize(
    "text",
    ["", "one", "1:2:3:4", "-5", "1:60", "1:60:00", "1:-2", "nan", "1e400", "9" * 5000, f"{10**10}:00:00"],
)
def test_offsets_that_are_none(text: str) -> None:
    with pytest.raises(CliError, match=r"--until .* is not a time"):
        parse_offset(text, "--until")


def test_a_moment_of_the_past() -> None:
    assert parse_since("now") == Position()
    assert parse_since("start") == Position(oldest=True)
    now_ms = time.time() * 1000
    ago_ms = parse_since("2h").at_ms
    assert ago_ms is not None
    assert now_ms - 7_200_000 <= ago_ms + 1 <= time.time() * 1000 - 7_200_000 + 1
    assert parse_since("2026-05-01T13:30").at_ms == datetime(2026, 5, 1, 13, 30).timestamp() * 1000
    assert parse_since("2026-05-01T13:30+00:00").at_ms == 1_777_642_200_000


def test_a_length_of_time_without_end_is_the_whole_past() -> None:
    assert parse_since("9" * 5000 + "d").at_ms == 0


def test_a_time_before_1970_is_the_oldest_record_and_not_kafkas_end() -> None:
    assert parse_since("1969-12-31T23:59:59.999+00:00").at_ms == 0
    assert parse_since("1900-01-01T00:00+00:00").at_ms == 0


@pytest.mark.parametrize("text", ["yesterday", "-5m", "5", "0001-01-01T00:00", "2026-13-01", ""])
def test_moments_that_are_none(text: str) -> None:
    with pytest.raises(CliError, match=r"--since .* must be now, start"):
        parse_since(text)


def test_a_span_holds_time() -> None:
    assert parse_span("start", "now") == (None, None)
    begin_ms, end_ms = parse_span("2026-05-01T13:30", "2026-05-01T14:30")
    assert begin_ms is not None
    assert end_ms == begin_ms + 3_600_000
    for since, until in (("now", "now"), ("start", "start"), ("1h", "2h"), ("1h", "2026-05-01T13:30")):
        with pytest.raises(CliError):
            parse_span(since, until)


def test_the_same_words_later_are_the_same_question() -> None:
    """`--since 24h` means the time at which the job of this name was first asked."""
    assert [text for text in ("24h", "1.5d", "start", "now", "2026-05-01", "24h ") if is_length(text)] == [
        "24h",
        "1.5d",
    ]
    jobs = [RecordingJob(id="a", backtest=BacktestJob(watch=Watch(question="Is it?"))) for _ in range(2)]
    for seconds, job in enumerate(jobs):
        job.backtest.since.FromSeconds(1000 + seconds)
    assert job_digest(jobs[0]) != job_digest(jobs[1])
    take_times(jobs[1], jobs[0], ["until"])
    assert job_digest(jobs[0]) != job_digest(jobs[1])
    take_times(jobs[1], jobs[0], ["since"])
    assert job_digest(jobs[0]) == job_digest(jobs[1])


def test_a_moment_has_an_offset_or_is_local() -> None:
    assert parse_moment("2026-05-01T13:30:00Z", "--at") == parse_moment("2026-05-01T15:30:00+02:00", "--at")
    assert parse_moment("2026-05-01T13:30", "--at") == datetime(2026, 5, 1, 13, 30).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "1200-01-01T00:00:00Z",
        "1969-12-31T23:59Z",
        "1999-12-31T23:59Z",
        "9999-12-31",
        "9" * 5000,
        "",
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(CliError, match=r"--at .* must be a time of the years 2000 to 2255"):
        parse_moment(text, "--at")


def test_an_end_is_a_length_or_a_time_in_the_future() -> None:
    now = time.time()
    assert now + 8 * 3600 <= parse_until("8h", "TIME") <= time.time() + 8 * 3600
    assert parse_until("2200-01-01T00:00:00Z", "TIME") == parse_moment("2200-01-01T00:00:00Z", "TIME")


@pytest.mark.parametrize("text", ["0s", "2020-01-01T00:00", "9999999999d", "-1h", "tomorrow", ""])
def test_an_end_that_is_none_is_rejected(text: str) -> None:
    with pytest.raises(CliError, match="TIME"):
        parse_until(text, "TIME")
