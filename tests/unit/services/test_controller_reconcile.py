"""One round of reconciling: resources become records, and their status is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lookout.runtime import View
from lookout.services.controller.cluster import CAMERA, WATCH, Kind
from lookout.services.controller.reconcile import Reconciler
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WATCHES, from_json
from tests.unit.services.controller_case import CREATED, QUESTION, camera_resource, watch_resource


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
