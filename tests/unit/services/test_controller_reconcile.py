"""One round of reconciling: resources become records, and their status is told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from lookout.rules import read_watch
from lookout.runtime.worker import View
from lookout.services.controller import convert
from lookout.services.controller.cluster import CAMERA, NOTIFICATION, WATCH, Kind
from lookout.services.controller.convert import Condition
from lookout.services.controller.reconcile import QUESTION_WIDTH, Reconciler
from lookout.services.controller.rounds import RoundError
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WATCHES, from_json, to_json
from tests.unit.services.controller_case import CREATED, QUESTION, camera_resource, watch_resource


class MemoryApi:
    """A fake of the Kubernetes API: keeps what is written, in memory."""

    def __init__(self, cameras: list[dict[str, Any]], watches: list[dict[str, Any]]) -> None:
        self.resources = {CAMERA: cameras, WATCH: watches, NOTIFICATION: []}
        self.status_writes = 0

    def known(self, kind: Kind) -> list[dict[str, Any]]:
        return self.resources[kind]

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        return next((item for item in self.resources[kind] if item["metadata"]["name"] == name), None)

    def set_finalizers(self, kind: Kind, resource: Mapping[str, Any], finalizers: list[str]) -> bool:
        resource["metadata"]["finalizers"] = finalizers
        return True

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
    return Reconciler(api, topics.view, topics.publish, lambda *_: dict(told), lambda _: {"agent": ""})


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


class OutdatedApi(MemoryApi):
    """A fake of the API whose resources changed, or went, since they were seen."""

    outdated = True

    def set_finalizers(self, kind: Kind, resource: Mapping[str, Any], finalizers: list[str]) -> bool:
        return not self.outdated and super().set_finalizers(kind, resource, finalizers)


def test_a_resource_that_is_deleted_while_it_is_added_leaves_no_record() -> None:
    """Without the finalizer nobody would take the record out again."""
    camera, watch = camera_resource(), watch_resource()
    for resource in (camera, watch):
        del resource["metadata"]["finalizers"]
    api, topics = OutdatedApi([camera], [watch]), MemoryTopics()
    reconciler = make(api, topics)
    reconciler.reconcile()
    assert topics.rows == {}
    api.outdated = False
    reconciler.work_off()
    assert {key for rows in topics.rows.values() for key in rows} == {"gate-3", "fall"}


def test_a_resource_that_went_without_a_word_takes_its_record_along() -> None:
    """The API server deletes one that gets its finalizer while it is deleted."""
    watch, other = watch_resource(), watch_resource()
    other["metadata"]["name"] = "other"
    api, topics = MemoryApi([], [watch]), MemoryTopics()
    topics.publish(WATCHES.name, "foreign", b"{}")
    reconciler = make(api, topics)
    reconciler.reconcile()
    api.resources[WATCH] = [other]
    for name in ("fall", "other", "foreign"):
        reconciler.mark(WATCH, name)
    reconciler.work_off()
    assert set(topics.rows[WATCHES.name]) == {"other", "foreign"}


def test_a_resource_that_changes_while_it_is_deleted_is_let_go_in_the_next_round() -> None:
    resource = watch_resource()
    api, topics = OutdatedApi([], [resource]), MemoryTopics()
    reconciler = make(api, topics)
    reconciler.reconcile()
    resource["metadata"]["deletionTimestamp"] = CREATED
    reconciler.reconcile()
    api.outdated = False
    reconciler.work_off()
    assert resource["metadata"]["finalizers"] == []


def test_numbers_alone_are_not_written_all_the_time() -> None:
    """Verdicts come every second; the API server must not take each of them."""
    resource = watch_resource()
    api, topics = MemoryApi([], [resource]), MemoryTopics()
    told = {"openIncidents": 0}
    reconciler = Reconciler(
        api, topics.view, topics.publish, lambda *_: dict(told), lambda _: {}, status_s=3600
    )
    reconciler.reconcile()
    for number in range(20):
        told["openIncidents"] = number
        reconciler.reconcile()
    assert api.status_writes == 1


def named(name: str, **spec: Any) -> dict[str, Any]:
    """A Watch resource of this name."""
    resource = watch_resource(**spec)
    resource["metadata"]["name"] = name
    return resource


def condition_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The condition Accepted of a resource."""
    return next(item for item in resource["status"]["conditions"] if item["type"] == "Accepted")


@pytest.mark.parametrize(
    "spec",
    [
        {"schedule": [{"start": "22:00", "end": "06:00", "timeZone": "America"}]},
        {"schedule": [{"start": "22:00", "end": "06:00", "timeZone": "Etc"}]},
        {"schedule": [{"start": "22:00", "end": "06:00", "timeZone": "x" * 5000}]},
        {"schedule": [{"start": "22:00"}]},
        {"minYes": 3, "ofLast": 100},
        {"minYes": 0},
        {"threshold": 0},
        {"threshold": float("nan")},
        {"clearThreshold": 0},
        {"cooldownSeconds": 1e300},
        {"question": "x" * 1001},
        {"cameras": ["a" * 201]},
        {"cameras": ["\x1b[2J"]},
        {"zones": [{"points": [[0, 0], [1, 0]]}]},
        {"zones": [{"points": [[0, 0], [1, 0], [1, 1]]}] * 21},
        {"zones": [{"points": [[0, 0], [1, 0], [7, 1]]}]},
        {"zones": "everywhere"},
        {"question": None},
    ],
)
def test_what_nobody_could_follow_is_not_accepted_and_stops_no_other(spec: dict[str, Any]) -> None:
    wrong, right = named("a-wrong", **spec), named("b-right")
    api, topics = MemoryApi([], [wrong, right]), MemoryTopics()
    make(api, topics).reconcile()
    assert list(topics.rows[WATCHES.name]) == ["b-right"]
    assert (condition_of(wrong)["status"], condition_of(wrong)["reason"]) == ("False", "Invalid")
    assert condition_of(right)["status"] == "True"


def test_what_is_accepted_is_followed_by_prefill_and_alerts() -> None:
    resource = watch_resource(minYes=3, ofLast=64, threshold=0.001, cooldownSeconds=2678400)
    api, topics = MemoryApi([], [resource]), MemoryTopics()
    make(api, topics).reconcile()
    _, rule = read_watch("fall", topics.rows[WATCHES.name]["fall"])
    assert (rule.k, rule.n, rule.threshold, rule.cooldown_ms) == (3, 64, 0.001, 2678400_000)


def test_a_resource_that_kafka_refuses_is_told_and_stops_no_other() -> None:
    first, second = named("a"), named("b")
    api, topics = MemoryApi([camera_resource()], [first, second]), MemoryTopics()

    def publish(topic: str, key: str, value: bytes | None) -> None:
        if key == "a":
            raise OSError("watches.v1 did not take a: message too large")
        topics.publish(topic, key, value)

    reconciler = Reconciler(api, topics.view, publish, lambda *_: {}, lambda _: {})
    with pytest.raises(RoundError, match="1 failures, the first: Watch a: OSError: watches"):
        reconciler.reconcile()
    assert list(topics.rows[WATCHES.name]) == ["b"]
    assert (condition_of(first)["reason"], condition_of(second)["reason"]) == ("Failed", "Published")


def test_a_round_that_takes_too_long_goes_on_in_the_next() -> None:
    resources = [named(f"w{number}") for number in range(4)]
    api, topics, clock = MemoryApi([], resources), MemoryTopics(), Clock()

    def publish(topic: str, key: str, value: bytes | None) -> None:
        clock.now += 1.0
        topics.publish(topic, key, value)

    reconciler = Reconciler(api, topics.view, publish, lambda *_: {}, lambda _: {}, round_s=2, clock=clock)
    with pytest.raises(RoundError, match="2 of 4 resources are left"):
        reconciler.reconcile()
    assert set(topics.rows[WATCHES.name]) == {"w0", "w1"}
    reconciler.work_off()
    assert set(topics.rows[WATCHES.name]) == {"w0", "w1", "w2", "w3"}


class Clock:
    """A settable clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def cameras(count: int) -> list[dict[str, Any]]:
    """Camera resources."""
    resources = [camera_resource() for _ in range(count)]
    for number, resource in enumerate(resources):
        resource["metadata"]["name"] = f"camera-{number}"
    return resources


def test_what_is_not_marked_costs_nothing() -> None:
    api, topics = MemoryApi(cameras(10), []), MemoryTopics()
    asked: list[str] = []

    def status(camera: str) -> dict[str, Any]:
        asked.append(camera)
        return {"agent": ""}

    reconciler = Reconciler(api, topics.view, topics.publish, lambda *_: {}, status)
    reconciler.reconcile()
    asked.clear()
    reconciler.work_off()
    assert asked == []
    reconciler.mark(CAMERA, "camera-3")
    reconciler.mark(CAMERA, "no longer there")
    reconciler.work_off()
    assert asked == ["camera-3"]


def test_statuses_are_written_at_a_bounded_rate_and_changed_conditions_first() -> None:
    """Ten thousand cameras count up all the time; one of them breaks."""
    api, topics, clock = MemoryApi(cameras(400), []), MemoryTopics(), Clock()
    count = 0
    broken = Condition("Streaming", False, "Reconnecting", "refused")
    streaming: dict[str, Condition] = {}

    def status(camera: str) -> dict[str, Any]:
        return {
            "segments": count,
            "streaming": streaming.get(camera, Condition("Streaming", True, "Streaming")),
        }

    reconciler = Reconciler(
        api, topics.view, topics.publish, lambda *_: {}, status, clock=clock, status_writes_s=20
    )
    reconciler.reconcile()
    while not all("status" in resource for resource in api.resources[CAMERA]):
        clock.now += 1.0
        reconciler.work_off()
    assert clock.now - 100 >= 400 / 20 - 1
    api.status_writes = 0
    for count in range(1, 61):  # noqa: B007 - `status` tells it
        for number in range(400):
            reconciler.mark_news(CAMERA, f"camera-{number}")
        reconciler.work_off()
        clock.now += 1.0
    assert 60 * 5 <= api.status_writes <= 60 * 10 + 10, "numbers take at most half of the writes"
    segments = [resource["status"]["segments"] for resource in api.resources[CAMERA]]
    assert min(segments) > 0, "each camera has its turn"
    streaming["camera-7"] = broken
    reconciler.mark(CAMERA, "camera-7")
    reconciler.work_off()
    conditions = api.resources[CAMERA][7]["status"]["conditions"]
    assert [item["reason"] for item in conditions if item["type"] == "Streaming"] == ["Reconnecting"]


def test_a_resource_that_flaps_is_written_once_a_second() -> None:
    api, topics, clock = MemoryApi(cameras(1), []), MemoryTopics(), Clock()
    flip = [True]

    def status(_: str) -> dict[str, Any]:
        flip[0] = not flip[0]
        return {"streaming": Condition("Streaming", flip[0], "Streaming")}

    reconciler = Reconciler(api, topics.view, topics.publish, lambda *_: {}, status, clock=clock)
    for _ in range(50):
        reconciler.reconcile()
        clock.now += 0.1
    assert api.status_writes <= 6


def test_a_report_that_cannot_be_read_changes_no_condition() -> None:
    resource = camera_resource()
    api, topics = MemoryApi([resource], []), MemoryTopics()
    report: dict[str, Any] = {"streaming": Condition("Streaming", True, "Streaming")}
    reconciler = Reconciler(api, topics.view, topics.publish, lambda *_: {}, lambda _: dict(report))
    reconciler.reconcile()
    report.clear()  # Redis is away
    reconciler.reconcile()
    streaming = [item for item in resource["status"]["conditions"] if item["type"] == "Streaming"]
    assert streaming[0]["status"] == "True"
    assert api.status_writes == 1


def test_a_status_that_cannot_be_written_is_told_and_written_later() -> None:
    class AwayApi(MemoryApi):
        away = True

        def set_status(self, kind: Kind, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
            if self.away:
                raise OSError("no answer")
            super().set_status(kind, resource, status)

    api, topics, clock = AwayApi([], [named("a"), named("b")]), MemoryTopics(), Clock()
    reconciler = Reconciler(api, topics.view, topics.publish, lambda *_: {}, lambda _: {}, clock=clock)
    with pytest.raises(RoundError, match="Watch a: OSError: no answer"):
        reconciler.reconcile()
    assert set(topics.rows[WATCHES.name]) == {"a", "b"}
    api.away = False
    clock.now += 1.0
    reconciler.work_off()
    assert api.status_writes == 2


def test_a_watch_is_asked_from_its_first_version_on() -> None:
    """Its id may have been another watch's; a record from before the resource has a lower version."""
    created = int(datetime.fromisoformat(CREATED).timestamp())
    asked: list[int] = []

    def status(_watch: str, first: int) -> dict[str, Any]:
        asked.append(first)
        return {}

    for existing in (None, 7):
        api, topics = MemoryApi([], [watch_resource()]), MemoryTopics()
        if existing is not None:
            desired = convert.watch(watch_resource())
            desired.version = existing
            topics.publish(WATCHES.name, "fall", to_json(desired))
        Reconciler(api, topics.view, topics.publish, status, lambda _: {}).reconcile()
    assert asked == [created, 7]


@pytest.mark.parametrize("question", ["Is anyone lying there? " * 40, "x" * 900, "Is\x1b[2Jit\nred?"])
def test_the_question_of_the_status_fits_a_column(question: str) -> None:
    resource = watch_resource(question=question)
    make(MemoryApi([], [resource]), MemoryTopics()).reconcile()
    title = resource["status"]["question"]
    assert 0 < len(title) <= QUESTION_WIDTH
    assert title.isprintable()
