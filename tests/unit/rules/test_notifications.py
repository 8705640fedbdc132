"""Notifications: what is rejected, and which incidents they are told of."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lookout.rules import RuleError
from lookout.rules.notifications import (
    check_notification,
    notification_fault,
    wants_event,
    wants_incident,
)
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Mqtt, Notification
from lookout.v1.watches_pb2 import (
    SEVERITY_CRITICAL,
    SEVERITY_INFO,
    SEVERITY_UNSPECIFIED,
    SEVERITY_WARNING,
    ScheduleEntry,
)
from lookout.wire import to_json

#: a Wednesday, 23:30 in Berlin
NIGHT_MS = round(datetime(2026, 7, 15, 21, 30, tzinfo=UTC).timestamp() * 1000)
NOON_MS = NIGHT_MS - 11 * 3_600_000
NIGHT = ScheduleEntry(start="22:00", end="06:00", time_zone="Europe/Berlin")


def hook(**more: object) -> Notification:
    return Notification(id="n", webhook={"url": "https://example.org/h", "secrets": ["k"]}, **more)  # type: ignore[arg-type]


def opened(**more: str) -> Alert:
    return Alert(kind=Alert.KIND_OPENED, camera=more.get("camera", "gate-1"), watch="fall", tenant="north")


@pytest.mark.parametrize(
    ("notification", "why"),
    [
        (Notification(id="n"), "channel: give one of webhook, apprise, mqtt and push"),
        (Notification(id="", webhook={"url": "https://example.org"}), "id ''"),
        (Notification(id="n", webhook={"url": "ftp://example.org", "secrets": ["k"]}), "webhook.url"),
        (Notification(id="n", webhook={"url": "https://u:p@example.org", "secrets": ["k"]}), "password"),
        (Notification(id="n", webhook={"url": "https://example.org"}), "webhook.secrets"),
        (
            Notification(id="n", webhook={"url": "https://example.org", "secrets": ["../k"]}),
            "name of a secret file",
        ),
        (Notification(id="n", webhook={"url": "https://example.org", "secrets": list("abc")}), "secrets"),
        (Notification(id="n", apprise={"url_file": ""}), "apprise.url_file"),
        (Notification(id="n", mqtt=Mqtt(host="a b")), "mqtt.host"),
        (Notification(id="n", mqtt=Mqtt(host="broker", topic="lookout/#")), "mqtt.topic"),
        (hook(hours=[ScheduleEntry(start="8", end="09:00")]), "time of day"),
        (hook(quiet_hours=[ScheduleEntry(start="08:00", end="09:00", time_zone="Mars")]), "time zone"),
        (hook(unclaimed_s=-1), "unclaimed_s"),
        (hook(tenant="No Tenant"), "tenant"),
        (hook(cameras=[""]), "cameras"),
    ],
)
def test_rejected_with_its_field(notification: Notification, why: str) -> None:
    with pytest.raises(RuleError, match="(?i)" + why.replace("(", r"\(")):
        check_notification(notification)


def test_record() -> None:
    assert notification_fault("n", to_json(hook())) is None
    assert "the record's key must be the notification's id" in str(
        notification_fault("other", to_json(hook()))
    )
    assert notification_fault("n", b"{") is not None


@pytest.mark.parametrize(
    ("notification", "wanted"),
    [
        (hook(), True),
        (hook(disabled=True), False),
        (hook(cameras=["gate-*"]), True),
        (hook(cameras=["yard-*"]), False),
        (hook(watches=["fire"]), False),
        (hook(tenant="south"), False),
        (hook(tenant="north", watches=["fall"]), True),
    ],
)
def test_selection(notification: Notification, wanted: bool) -> None:
    assert wants_incident(notification, opened(), SEVERITY_UNSPECIFIED, NIGHT_MS) is wanted


def test_severity() -> None:
    assert not wants_incident(hook(severity=SEVERITY_WARNING), opened(), SEVERITY_INFO, NIGHT_MS)
    assert wants_incident(hook(severity=SEVERITY_WARNING), opened(), SEVERITY_UNSPECIFIED, NIGHT_MS)
    assert wants_incident(hook(severity=SEVERITY_WARNING), opened(), SEVERITY_CRITICAL, NIGHT_MS)
    assert not wants_incident(hook(severity=SEVERITY_CRITICAL), opened(), SEVERITY_UNSPECIFIED, NIGHT_MS)


def test_hours_are_of_their_time_zone() -> None:
    at_night = hook(hours=[NIGHT])
    assert wants_incident(at_night, opened(), SEVERITY_INFO, NIGHT_MS)
    assert not wants_incident(at_night, opened(), SEVERITY_INFO, NOON_MS)


def test_quiet_hours_let_critical_incidents_pass() -> None:
    quiet = hook(quiet_hours=[NIGHT])
    assert not wants_incident(quiet, opened(), SEVERITY_WARNING, NIGHT_MS)
    assert wants_incident(quiet, opened(), SEVERITY_CRITICAL, NIGHT_MS)
    assert wants_incident(quiet, opened(), SEVERITY_INFO, NOON_MS)


def test_snoozed() -> None:
    snoozed = hook()
    snoozed.snoozed_until.FromMilliseconds(NIGHT_MS + 1)
    assert not wants_incident(snoozed, opened(), SEVERITY_CRITICAL, NIGHT_MS)
    assert wants_incident(snoozed, opened(), SEVERITY_CRITICAL, NIGHT_MS + 1)


def test_events() -> None:
    some = hook(events=[Notification.EVENT_CLOSED, Notification.EVENT_ACTION])
    assert not wants_event(some, opened())
    assert wants_event(some, Alert(kind=Alert.KIND_CLOSED))
    assert wants_event(some, IncidentAction(kind=IncidentAction.KIND_NOTE))
    assert wants_event(hook(), opened())
