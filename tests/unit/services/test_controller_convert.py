"""Resources as records: fields, versions, conditions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from lookout.services.controller import convert
from lookout.services.controller.convert import Condition, ResourceError
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.watches_pb2 import Watch
from tests.unit.services.controller_case import QUESTION, camera_resource, watch_resource


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
            keep=True,
            tenant="acme",
            verifyWith="large",
            asked="strides",
            gate={"watch": "person", "motion": True},
            schedule=[{"start": "22:00", "end": "06:00", "weekdays": [1, 2], "timeZone": "Europe/Berlin"}],
            zones=[{"name": "bed", "points": [[0, 0], [1, 0], [1, 1]]}],
        )
    )
    assert (found.id, found.question, list(found.cameras)) == ("fall", QUESTION, ["ward-*"])
    assert (found.rule.threshold, found.rule.clear_threshold, found.rule.k, found.rule.n) == (0.7, 0.4, 2, 3)
    assert found.rule.cooldown_s == 30
    assert found.describe
    assert found.keep
    assert found.tenant == "acme"
    assert (found.verify, found.verify_with) == (True, "large")
    assert found.asked == Watch.ASKED_STRIDES
    assert convert.watch(watch_resource(asked="windows")) == convert.watch(watch_resource())
    with pytest.raises(ResourceError, match=r"^spec: asked: 'stride' is unknown; it is one of windows, str"):
        convert.watch(watch_resource(asked="stride"))
    assert (found.gate.watch, found.gate.motion) == ("person", True)
    assert found.rule.schedule[0].time_zone == "Europe/Berlin"
    assert [(point.x, point.y) for point in found.rule.zones[0].points] == [(0, 0), (1, 0), (1, 1)]


def test_allowed_answers_that_cannot_be_read_are_named() -> None:
    question = "How many people are in view? [0..5] when count >= 3"
    assert convert.watch(watch_resource(question=question)).question == question
    for fault, changed in (
        ("a condition after them", "How many? [0..5]"),
        ("holds for no allowed answer", question.replace("3", "9")),
    ):
        with pytest.raises(ResourceError, match=f"^spec: .*{fault}"):
            convert.watch(watch_resource(question=changed))


def test_a_time_zone_that_does_not_exist_is_named() -> None:
    resource = watch_resource(schedule=[{"start": "22:00", "end": "06:00", "timeZone": "Mars/Olympus"}])
    with pytest.raises(ResourceError, match=r"spec: schedule.*Mars/Olympus"):
        convert.watch(resource)


def test_a_camera_keeps_every_field() -> None:
    found = convert.camera(
        camera_resource(
            transport="udp",
            segmentSeconds=2,
            credentialsSecret="yard",
            tenant="acme",
            priority="high",
            timeZone="Asia/Kathmandu",
        )
    )
    assert found == Camera(
        id="gate-3",
        url="rtsp://10.1.2.3/live",
        transport=Camera.TRANSPORT_UDP,
        segment_s=2,
        credentials="yard",
        tenant="acme",
        priority=Watch.PRIORITY_HIGH,
        time_zone="Asia/Kathmandu",
    )


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", 7])
def test_a_camera_in_no_time_zone_is_refused(zone: object) -> None:
    with pytest.raises(ResourceError, match=r"^spec"):
        convert.camera(camera_resource(timeZone=zone))


@pytest.mark.parametrize("tenant", ["a b", "ä", "9" * 5000, 7, ["acme"]])
def test_what_is_no_tenant_is_refused(tenant: object) -> None:
    for convert_one, resource in ((convert.camera, camera_resource), (convert.watch, watch_resource)):
        with pytest.raises(ResourceError, match=r"^spec"):
            convert_one(resource(tenant=tenant))


def test_a_camera_from_before_the_schema_refused_passwords_is_not_followed() -> None:
    with pytest.raises(
        ResourceError, match=r"^spec\.url: it contains a password: write \{password\}"
    ) as refused:
        convert.camera(camera_resource(url="rtsp://10.1.2.3/live?psw=hush"))
    assert "hush" not in str(refused.value)


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
