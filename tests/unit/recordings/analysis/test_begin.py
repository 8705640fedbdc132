"""Times by the clock: who says when a recording begins, and where answers show it."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from jsonschema import Draft202012Validator

from lookout.recordings.analysis import Analysis, AnalysisError
from lookout.recordings.analysis.begin import begin_and_source, given_begin
from lookout.recordings.jobs.begins import begin_of
from lookout.recordings.jobs.requests import JobError, check_job
from lookout.v1.recordings_pb2 import RecordingAnswer, RecordingJob
from lookout.video.files import Gap
from lookout.wire.begins import set_begin
from protos.analysis_schema import analysis_schema
from tests.unit.recordings.analysis.test_analysis import run
from tests.unit.video.files.test_begin import tagged

SUMMER = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 5, 1, 13, 30, tzinfo=SUMMER),
        "2026-05-01T13:30:00+02:00",
        "2026-05-01 13:30+0200",
        "20260501T133000+02",
    ],
)
def test_a_moment_keeps_its_offset(value: datetime | str) -> None:
    begin = given_begin(value)
    assert begin.isoformat() == "2026-05-01T13:30:00+02:00"


def test_a_moment_without_an_offset_is_local() -> None:
    assert given_begin("2026-05-01T13:30") == datetime(2026, 5, 1, 13, 30).astimezone()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "13:30",
        "1969-12-31T23:00Z",
        "2200-01-01T00:00Z",
        "9999-12-31T23:59:59-23:00",
        "9" * 9999,
        5,
    ],
)
def test_what_is_no_moment_is_refused(value: str) -> None:
    with pytest.raises(AnalysisError, match="give a time between 1970 and 2200"):
        given_begin(value)


def test_the_caller_goes_before_the_file() -> None:
    stated = datetime(2026, 5, 1, tzinfo=UTC)
    assert begin_and_source("2026-05-02T00:00Z", stated) == (datetime(2026, 5, 2, tzinfo=UTC), "given")
    assert begin_and_source(None, stated) == (stated, "file")
    assert begin_and_source(None, None) == (None, "")


@pytest.fixture(scope="module")
def found() -> Analysis:
    """Answers about a recording that says when it begins."""
    return run(tagged({"creation_time": "2024-05-01T23:59:59Z"}))


@pytest.mark.slow
def test_answers_have_times(found: Analysis) -> None:
    assert (found.begins, found.begins_from) == (datetime(2024, 5, 1, 23, 59, 59, tzinfo=UTC), "file")
    first = found.rows()[0]
    assert (first["start_time"], first["end_time"]) == (found.begins, found.time_at(first["end_s"]))
    data = found.to_dict()
    assert data["begins"] == "2024-05-01T23:59:59.000+00:00"
    assert data["answers"][0]["start_time"] == "2024-05-01T23:59:59.000+00:00"
    assert data["parts"][0]["end_time"] == "2024-05-02T00:00:00.200+00:00"
    given = dataclasses.replace(found, begins=None, begins_from="")
    assert given.rows()[0]["start_time"] is None
    assert given.to_dict()["parts"][0]["start_time"] is None


@pytest.mark.slow
@pytest.mark.parametrize("begins", [None, datetime(2026, 5, 1, 13, 30, tzinfo=SUMMER)])
def test_real_answers_follow_the_published_schema(found: Analysis, begins: datetime | None) -> None:
    own = dataclasses.replace(
        found,
        begins=begins,
        begins_from="given" if begins else "",
        gaps=(Gap(0, 1, 2, "damaged"),),
        timings=found.timings if begins else None,
        answers=tuple(dataclasses.replace(answer, yes_s=((0.0, 1.2),)) for answer in found.answers),
    )
    clip = {"path": None, "questions": ["Is it?"], "p_yes": 0.7, "start_s": 0.0, "end_s": 1.0, "reason": "x"}
    data = json.loads(json.dumps({**own.to_dict(), "clips": [clip]}))
    Draft202012Validator(
        closed(analysis_schema()), format_checker=Draft202012Validator.FORMAT_CHECKER
    ).validate(data)
    assert data["answers"][0]["yes_times"] == (
        [["2026-05-01T13:30:00.000+02:00", "2026-05-01T13:30:01.200+02:00"]] if begins else []
    )


def closed(schema: dict[str, object]) -> dict[str, object]:
    """A schema that takes no field it does not name."""
    own = {
        name: closed(value) if isinstance(value, dict) else value
        for name, value in schema.items()
    }  # fmt: skip
    return {**own, "additionalProperties": False} if "properties" in own and "type" in own else own


def test_a_request_names_the_begin_of_one_recording() -> None:
    job = RecordingJob(id="one", uris=["file:///a.mp4"], questions=["Is it dark?"])
    set_begin(job.settings, datetime(2026, 5, 1, 13, 30, tzinfo=SUMMER))
    check_job(job)
    assert begin_of(job.settings) == datetime(2026, 5, 1, 11, 30, tzinfo=UTC)
    job.uris.append("file:///b.mp4")
    with pytest.raises(JobError, match="begins applies to one recording, but the job names 2"):
        check_job(job)
    del job.uris[1]
    job.settings.begins.seconds = -62_135_596_800  # the year 1
    with pytest.raises(JobError, match="begins: give a time between 1970 and 2200"):
        check_job(job)


@pytest.mark.parametrize("offset", [0, 120, -1439])
def test_a_begin_goes_through_a_message(offset: int) -> None:
    begin = datetime(2026, 5, 1, 13, 30, tzinfo=timezone(timedelta(minutes=offset)))
    message = RecordingAnswer()
    assert begin_of(message) is None
    set_begin(message, begin)
    again = begin_of(message)
    assert again is not None
    assert (again, again.utcoffset()) == (begin, begin.utcoffset())
