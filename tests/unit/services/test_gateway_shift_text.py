"""A report in words: every sentence says what the report has, and names its incidents."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from lookout.services.gateway.history.shift_text import sentences
from lookout.v1.actions_pb2 import IncidentState
from lookout.v1.gateway_pb2 import IncidentView, ReportHour, ShiftReport, UnwatchedTime
from lookout.v1.memory_pb2 import ScoredSpan
from lookout.wire import CAMERA_HEALTH

BEGIN_MS = 1_777_600_800_000  # 2026-05-01T02:00Z


def moment(minute: float) -> Timestamp:
    at = Timestamp()
    at.FromMilliseconds(BEGIN_MS + round(60_000 * minute))
    return at


def incident(name: str, minute: float, camera: str = "gate", peak: float = 0.9) -> IncidentView:
    return IncidentView(
        id=name,
        camera=camera,
        watch="lying",
        question="Is anyone lying?",
        peak=peak,
        start=moment(minute),
        state=IncidentState.INCIDENT_STATE_RESOLVED,
    )


def told(report: ShiftReport) -> dict[str, list[str]]:
    """Incidents by sentence."""
    return {sentence.text: list(sentence.incidents) for sentence in sentences(report)}


def test_a_time_without_anything_is_said_plainly() -> None:
    assert told(ShiftReport()) == {
        "No incident began.": [],
        "Nothing was watched: no question has an answer in this time.": [],
    }


def test_incidents_are_told_by_question_and_cited() -> None:
    wrong, new = incident("c", 125, "yard", 0.7), incident("b", 5, peak=0.97)
    wrong.right, new.state = False, IncidentState.INCIDENT_STATE_NEW
    health = incident("d", 10, "dome", 0.0)
    health.watch, health.question, health.cause = CAMERA_HEALTH, "The lens is covered.", "covered"
    hours = [
        ReportHour(start=moment(0), incidents=3, watched_s=3600),
        ReportHour(start=moment(120), incidents=1, watched_s=60),
    ]
    report = ShiftReport(incidents=[wrong, health, new, incident("a", 1)], hours=hours)
    assert told(report) == {
        "4 incidents began on 3 cameras.": ["c", "d", "b", "a"],
        "“Is anyone lying?” was yes on gate (2), yard (1); "
        "the model was surest (97 %) on gate at 02:05:00.": [
            "c",
            "b",
            "a",
        ],
        "Camera health: something was wrong with dome (1).": ["d"],
        "Nobody has taken up: gate at 02:05:00.": ["b"],
        "1 was called a false alarm.": ["c"],
        "Most began between 02:00:00 and 03:00:00: 3.": [],
        "Every question was answered all the time.": [],
    }


def test_what_was_not_watched_is_told_with_its_reasons_and_the_longest_stretch() -> None:
    stretches = [
        UnwatchedTime(camera="gate", watch="w", start=moment(0), end=moment(50), reason="gap", seconds=3000),
        UnwatchedTime(
            camera="yard", watch="w", start=moment(20), end=moment(30), reason="unseen", seconds=600
        ),
    ]
    hours = [ReportHour(start=moment(0), watched_s=82_800, unwatched_s=3600)]
    begin_us = BEGIN_MS * 1000
    unusual = ScoredSpan(camera="gate", begin_us=begin_us, end_us=begin_us + 120_000_000, score=3.0)
    said = list(told(ShiftReport(hours=hours, unwatched=stretches, unusual=[unusual])))
    assert said[1:] == [
        "1 h of 24 h had no answer, summed over cameras and questions: gap 50 min, "
        "nothing came 10 min. The longest: gate, 02:00:00 to 02:50:00, gap.",
        "1 span looks unusual for the time of day; the most unusual: gate, 02:00:00 to 02:02:00.",
    ]


def test_an_outage_that_goes_on_has_no_end_and_says_what_the_agent_said() -> None:
    stretch = UnwatchedTime(camera="gate", start=moment(0), end=moment(50), reason="unseen", seconds=3000)
    stretch.ongoing, stretch.said = True, "cannot reach 192.0.2.7: Connection refused"
    (_, said) = told(ShiftReport(hours=[ReportHour(start=moment(0), unwatched_s=3000)], unwatched=[stretch]))
    assert said.endswith(
        "The longest: gate, since 02:00:00, still ongoing, "
        "nothing came (cannot reach 192.0.2.7: Connection refused)."
    )


def test_names_of_cameras_cannot_write_into_a_terminal() -> None:
    (first, second, *_) = told(ShiftReport(incidents=[incident("a", 1, "gate\x1b[31m")]))
    assert "\x1b" not in first + second


def test_more_incidents_than_are_listed_are_counted() -> None:
    hours = [ReportHour(start=moment(0), incidents=350, watched_s=60)]
    (first, *_) = told(ShiftReport(incidents=[incident("a", 1)], hours=hours, more_incidents=True))
    assert first == "350 incidents began on 1 camera; this report lists the newest 1."


def test_times_are_of_the_readers_zone_and_have_their_day_in_long_reports() -> None:
    opened = incident("a", 5)
    opened.state = IncidentState.INCIDENT_STATE_NEW
    opened.raised.CopyFrom(moment(5.2))  # the model looked from before what it saw
    late = UnwatchedTime(camera="yard", start=moment(0), end=moment(90), reason="unset", seconds=5400)
    report = ShiftReport(incidents=[opened], unset=[late], until=moment(600), since=moment(0))
    said = [sentence.text for sentence in sentences(report, "Asia/Kathmandu")]
    assert "Nobody has taken up: gate at 07:50:12." in said
    assert said[-1] == "Not set up yet, and not counted above: yard until 09:15:00."
    report.until.CopyFrom(moment(3000))
    said = [sentence.text for sentence in sentences(report, "Asia/Kathmandu")]
    assert said[-1] == "Not set up yet, and not counted above: yard until 01 May 09:15:00."
