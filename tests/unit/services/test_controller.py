"""Resources become records and back: conversion, versions, conditions, one round of reconciling."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookout.runtime import View
from lookout.services.controller import convert
from lookout.services.controller.activity import WatchActivity
from lookout.services.controller.cluster import CAMERA, FINALIZER, WATCH, Kind
from lookout.services.controller.convert import Condition, ResourceError
from lookout.services.controller.reconcile import Reconciler
from lookout.services.controller.topics import configuration
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import SEGMENTS, WATCHES, from_json

CREATED = "2026-01-02T03:04:05Z"
QUESTION = "Is anyone lying on the ground?"


def watch_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "fall", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"question": QUESTION, **spec}}


def camera_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "gate-3", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"url": "rtsp://10.1.2.3/live", **spec}}


def test_a_watch_keeps_every_field() -> None:
    found = convert.watch(
        watch_resource(
            cameras=["ward-*"],
            threshold=0.7,
            clearThreshold=0.4,
            minYes=2,
            ofLast=3,
            cooldownSeconds=30,
            describe=True,
            schedule=[{"start": "22:00", "end": "06:00", "weekdays": [1, 2], "timeZone": "Europe/Berlin"}],
            zones=[{"name": "bed", "points": [[0, 0], [1, 0], [1, 1]]}],
        )
    )
    assert (found.id, found.question, list(found.cameras)) == ("fall", QUESTION, ["ward-*"])
    assert (found.rule.threshold, found.rule.clear_threshold, found.rule.k, found.rule.n) == (0.7, 0.4, 2, 3)
    assert found.rule.cooldown_s == 30
    assert found.describe
    assert found.rule.schedule[0].time_zone == "Europe/Berlin"
    assert [(point.x, point.y) for point in found.rule.zones[0].points] == [(0, 0), (1, 0), (1, 1)]


def test_a_time_zone_that_does_not_exist_is_named() -> None:
    resource = watch_resource(schedule=[{"start": "22:00", "end": "06:00", "timeZone": "Mars/Olympus"}])
    with pytest.raises(ResourceError, match=r"spec\.schedule.*Mars/Olympus"):
        convert.watch(resource)


def test_a_camera_keeps_every_field() -> None:
    found = convert.camera(camera_resource(transport="udp", segmentSeconds=2, credentialsSecret="yard"))
    assert found == Camera(
        id="gate-3",
        url="rtsp://10.1.2.3/live",
        transport=Camera.TRANSPORT_UDP,
        segment_s=2,
        credentials="yard",
    )


@given(st.lists(st.sampled_from(["a?", "b?", "c?"]), min_size=1, max_size=8))
def test_versions_grow_with_changes_only(questions: list[str]) -> None:
    """The topic's record follows the newest question; its version grows once for each change."""
    created = datetime(2026, 1, 2, tzinfo=UTC)
    existing: Watch | None = None
    for index, question in enumerate(questions):
        desired = Watch(id="w", question=question)
        record = convert.versioned(desired, existing, created, 1000 + index)
        if existing is not None and existing.question == question:
            assert record is None
            continue
        assert record is not None
        if existing is None:
            assert record.version == int(created.timestamp())
            assert not record.HasField("active_from")
        else:
            assert record.version == existing.version + 1
            assert record.active_from.ToMilliseconds() == 1000 + index
        existing = record


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = convert.conditions([], [Condition("Accepted", True, "Published")], 1, "t1")
    same = convert.conditions(first, [Condition("Accepted", True, "Published")], 2, "t2")
    other = convert.conditions(same, [Condition("Accepted", False, "Invalid", "why")], 3, "t3")
    assert [each[0]["lastTransitionTime"] for each in (first, same, other)] == ["t1", "t1", "t3"]
    assert other[0]["status"] == "False"
    assert same[0]["observedGeneration"] == 2


def test_activity_tells_the_last_verdict_the_open_incident_and_the_coverage() -> None:
    activity = WatchActivity()
    for second, outcome in (
        (1, Verdict.OUTCOME_ANSWERED),
        (3, Verdict.OUTCOME_ANSWERED),
        (2, Verdict.OUTCOME_GAP),
    ):
        verdict = Verdict(camera="gate-3", outcome=outcome, p_yes=0.9)
        verdict.end.FromSeconds(second)
        activity.take_verdict(verdict)
    activity.take_alert(Alert(incident="i1", camera="gate-3", kind=Alert.KIND_OPENED))
    activity.take_alert(Alert(incident="i2", camera="gate-4", kind=Alert.KIND_OPENED))
    activity.take_alert(Alert(incident="i2", camera="gate-4", kind=Alert.KIND_CLOSED))
    status = activity.status()
    assert status["lastVerdict"]["summary"] == "yes 0.90 gate-3"
    assert status["lastVerdict"]["time"] == "1970-01-01T00:00:03Z"
    assert (status["incident"], status["openIncidents"]) == ("i1 (gate-3)", 1)
    assert status["coverage"] == "67 %"


class MemoryApi:
    """A fake of the Kubernetes API: keeps what is written, in memory."""

    def __init__(self, cameras: list[dict[str, Any]], watches: list[dict[str, Any]]) -> None:
        self.resources = {CAMERA: cameras, WATCH: watches}
        self.status_writes = 0

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        return self.resources[kind]

    def set_finalizers(self, kind: Kind, resource: Mapping[str, Any], finalizers: list[str]) -> None:
        resource["metadata"]["finalizers"] = finalizers

    def set_status(self, kind: Kind, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self.status_writes += 1
        resource.setdefault("status", {}).update(status)  # type: ignore[attr-defined]


class MemoryTopics:
    """A fake of the topics: the newest value of each key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, bytes]] = {}

    def publish(self, topic: str, key: str, value: bytes | None) -> None:
        table = self.rows.setdefault(topic, {})
        if value is None:
            del table[key]
        else:
            table[key] = value

    def view(self, topic: str) -> View:
        return View({key: (value,) for key, value in self.rows.get(topic, {}).items()}, 0)


def make(api: MemoryApi, topics: MemoryTopics, **status: Any) -> Reconciler:
    told = {"openIncidents": 0, **status}
    return Reconciler(api, topics.view, topics.publish, lambda _: dict(told), lambda _: {"agent": ""})


def test_a_round_publishes_and_tells_and_a_second_changes_nothing() -> None:
    api, topics = MemoryApi([camera_resource()], [watch_resource()]), MemoryTopics()
    reconciler = make(api, topics)
    reconciler.reconcile()
    first, writes = {name: dict(rows) for name, rows in topics.rows.items()}, api.status_writes
    record = from_json(first[WATCHES.name]["fall"], Watch)
    assert record.question == QUESTION
    status = api.resources[WATCH][0]["status"]
    assert status["version"] == record.version
    assert status["conditions"][0]["status"] == "True"
    streaming = [
        each for each in api.resources[CAMERA][0]["status"]["conditions"] if each["type"] == "Streaming"
    ]
    assert streaming[0]["reason"] == "NoAgent"
    reconciler.reconcile()
    assert topics.rows == first
    assert api.status_writes == writes


def test_a_deleted_resource_takes_its_record_along_and_nothing_else() -> None:
    resource = watch_resource()
    api, topics = MemoryApi([], [resource]), MemoryTopics()
    topics.publish(WATCHES.name, "other", b"{}")
    reconciler = make(api, topics)
    reconciler.reconcile()
    resource["metadata"]["deletionTimestamp"] = CREATED
    reconciler.reconcile()
    assert set(topics.rows[WATCHES.name]) == {"other"}
    assert resource["metadata"]["finalizers"] == []


def test_an_invalid_watch_is_told_and_not_published() -> None:
    resource = watch_resource(schedule=[{"start": "22:00", "end": "06:00", "timeZone": "Mars/Olympus"}])
    api, topics = MemoryApi([], [resource]), MemoryTopics()
    make(api, topics).reconcile()
    assert not topics.rows
    condition = resource["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "Invalid")
    assert "Mars/Olympus" in condition["message"]


def test_numbers_alone_are_not_written_all_the_time() -> None:
    """Verdicts come every second; the API server must not take each of them."""
    resource = watch_resource()
    api, topics = MemoryApi([], [resource]), MemoryTopics()
    told = {"openIncidents": 0}
    reconciler = Reconciler(
        api, topics.view, topics.publish, lambda _: dict(told), lambda _: {}, status_s=3600
    )
    reconciler.reconcile()
    for number in range(20):
        told["openIncidents"] = number
        reconciler.reconcile()
    assert api.status_writes == 1


def test_new_topics_follow_the_table_and_the_owner() -> None:
    assert configuration(SEGMENTS, 1, 2.0)["retention.ms"] == "7200000"
    assert "min.insync.replicas" not in configuration(SEGMENTS, 1)
    assert configuration(SEGMENTS, 3)["min.insync.replicas"] == "2"
    with pytest.raises(Exception, match="compacted"):
        configuration(WATCHES, 1, 2.0)
