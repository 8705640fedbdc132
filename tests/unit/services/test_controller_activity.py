"""What a watch's status tells of its verdicts and incidents."""

from __future__ import annotations

import json
from typing import Any

from lookout.services.controller.activity import WatchActivity
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import to_json


def test_activity_tells_the_last_verdict_the_open_incident_and_the_coverage() -> None:
    activity = WatchActivity()
    for second, outcome in (
        (1, Verdict.OUTCOME_ANSWERED),
        (3, Verdict.OUTCOME_ANSWERED),
        (2, Verdict.OUTCOME_GAP),
    ):
        verdict = Verdict(camera="gate-3", outcome=outcome, p_yes=0.9)
        verdict.end.FromSeconds(second)
        activity.take_verdict(json.loads(to_json(verdict)))
    activity.take_alert(Alert(incident="i1", camera="gate-3", kind=Alert.KIND_OPENED))
    activity.take_alert(Alert(incident="i2", camera="gate-4", kind=Alert.KIND_OPENED))
    activity.take_alert(Alert(incident="i2", camera="gate-4", kind=Alert.KIND_CLOSED))
    status = activity.status()
    assert status["lastVerdict"]["summary"] == "yes 0.90 gate-3"
    assert status["lastVerdict"]["time"] == "1970-01-01T00:00:03Z"
    assert (status["incident"], status["openIncidents"]) == ("i1 (gate-3)", 1)
    assert status["coverage"] == "67 %"


def test_a_watch_made_again_shows_nothing_of_its_predecessor() -> None:
    """Also what comes late: verdicts of the deleted watch are on their way for a while."""
    activity = WatchActivity()
    activity.take_verdict(_verdict(version=100, second=1))
    activity.take_verdict(_verdict(version=200, second=2))
    for incident, version in (("old", 100), ("new", 200)):
        activity.take_alert(
            Alert(incident=incident, camera="gate-3", watch_version=version, kind=Alert.KIND_OPENED)
        )
    activity.begin(200)
    status = activity.status()
    assert (status["openIncidents"], status["incident"], status["coverage"]) == (1, "new (gate-3)", "100 %")
    assert status["lastVerdict"]["time"] == "1970-01-01T00:00:02Z"
    activity.begin(300)
    activity.take_verdict(_verdict(version=200, second=9))
    activity.take_alert(Alert(incident="late", camera="gate-3", watch_version=200, kind=Alert.KIND_OPENED))
    assert activity.status() == {"openIncidents": 0, "incident": ""}


def _verdict(version: int, second: int) -> dict[str, Any]:
    verdict = Verdict(camera="gate-3", watch_version=version, outcome=Verdict.OUTCOME_ANSWERED, p_yes=0.9)
    verdict.end.FromSeconds(second)
    fields: dict[str, Any] = json.loads(to_json(verdict))
    return fields


def test_the_newest_verdict_is_the_last_however_its_time_is_written() -> None:
    activity = WatchActivity()
    for end, camera in (("05.5Z", "new"), ("05Z", "old"), ("05.25Z", "older"), ("05.500001Z", "newest")):
        verdict = {**_verdict(1, 5), "end": f"1970-01-01T00:00:{end}", "camera": camera}
        activity.take_verdict(verdict)
        assert activity.status()["lastVerdict"]["camera"] == ("newest" if camera == "newest" else "new")


def test_a_watch_is_unanswered_since_its_last_answer() -> None:
    watch = WatchActivity(answered_at=0.0)
    gap = {"watch_version": 1, "end": "2026-01-01T00:00:00Z", "outcome": "gap"}
    watch.take_verdict(gap)
    assert watch.answered_at == 0.0
    watch.take_verdict({**gap, "outcome": "answered"})
    assert watch.answered_at > 0.0
