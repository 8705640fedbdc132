"""Scheduled reports: when, for whom, once, and what notify makes of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from lookout.administration import WriteError
from lookout.rules import RuleError
from lookout.rules.notifications import wants_event, wants_incident
from lookout.rules.watches import asked_question
from lookout.runtime.worker.records import Record
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.parts import Parts, make_parts
from lookout.services.gateway.reports import ScheduledReports, newest_period
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.notify.composing import Composer
from lookout.services.notify.engine import Engine
from lookout.services.notify.settings import NotifySettings
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, Webhook
from lookout.v1.watches_pb2 import SEVERITY_UNSPECIFIED, Watch
from lookout.wire import ALERTS, EVERY_CAMERA, SHIFT_REPORT, received
from tests.fleet.gateway_records import BEGIN_MS
from tests.unit.services.test_gateway_history import FakeMessage, ingest

HOUR_MS = 3_600_000
TIMES = "06:00,18:00 Europe/Berlin"


class Kafka:
    """A fake that takes records, as a broker that confirms them, or that does not answer."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.away = False

    def publish(self, topic: str, key: str, value: bytes, headers: Any) -> None:
        assert topic == ALERTS.name
        if self.away:
            raise WriteError("no answer")
        self.records.append((key, value))


def gateway(folder: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """The parts of a gateway with a history, without Kafka."""
    parts = make_parts(
        GatewaySettings.model_validate(
            {
                "mode": "local",
                "bootstrap": "127.0.0.1:1",
                "database_url": f"sqlite:///{folder}/history.db",
                "report_times": TIMES,
            }
        )
    )
    monkeypatch.setattr(parts.writes, "publish", kafka.publish)
    ingest(parts.database, ())
    return parts


def read_back(parts: Parts, kafka: Kafka) -> list[Alert]:
    """Let the history read what was written; the alerts."""
    messages = [
        FakeMessage(ALERTS.name, 0, 1000 + place, key.encode(), value)
        for place, (key, value) in enumerate(kafka.records)
    ]
    records = Records(parts.database)
    with parts.database.writing() as connection:
        batch = records.begin(connection)
        for message in messages:
            records.take(batch, message)  # type: ignore[arg-type]  # a fake
        records.end(batch)
    return [received(Alert, Record(ALERTS.name, 0, 0, key, value)) for key, value in kafka.records]


def test_a_report_is_written_once_for_each_tenant_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, now_ms = Kafka(), [BEGIN_MS + 60_000]  # the minute in which windows are decided
    parts = gateway(tmp_path, kafka, monkeypatch)
    try:
        reports, other = (ScheduledReports(parts, lambda: now_ms[0] / 1000) for _ in range(2))
        reports.write()
        assert not kafka.records, "the first report is about what follows"
        _, end_ms = newest_period(TIMES, BEGIN_MS)
        now_ms[0] = end_ms + 12 * HOUR_MS + 59_000
        reports.write()
        assert not kafka.records, "its last windows are not decided yet"
        now_ms[0] += 2000
        kafka.away = True
        monkeypatch.setattr("lookout.services.gateway.reports._LEASE_S", 0.0)
        with pytest.raises(WriteError):
            reports.write()
        monkeypatch.setattr("lookout.services.gateway.reports._LEASE_S", 120.0)
        kafka.away = False
        time.sleep(0.002)  # until the attempt counts as over
        reports.write()
        other.write()
        written = read_back(parts, kafka)
        now_ms[0] += 10 * HOUR_MS
        reports.write()
        assert len(kafka.records) == len(written), "it is not written again"
        assert sorted(alert.tenant for alert in written) == ["default", "north"]
        for alert in written:
            assert (alert.kind, alert.camera, alert.watch) == (Alert.KIND_REPORT, EVERY_CAMERA, SHIFT_REPORT)
            assert alert.start.ToMilliseconds() == end_ms
            assert alert.end.ToMilliseconds() == end_ms + 12 * HOUR_MS
            assert alert.text
    finally:
        parts.media.close()
        parts.database.close()


@given(st.integers(1_700_000_000_000, 1_900_000_000_000))
def test_periods_follow_each_other_without_a_hole(now_ms: int) -> None:
    begin_ms, end_ms = newest_period(TIMES, now_ms)
    assert begin_ms < end_ms <= now_ms < end_ms + 13 * HOUR_MS  # an hour more where clocks are set back
    assert newest_period(TIMES, end_ms - 1)[1] == begin_ms


def test_a_period_is_one_of_local_time() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp() * 1000
    ends = [datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in newest_period(TIMES, noon)]
    assert ends == ["2026-06-30T16:00:00+00:00", "2026-07-01T04:00:00+00:00"]
    begin_ms, end_ms = newest_period("00:00", noon)
    assert end_ms - begin_ms == 24 * HOUR_MS


@pytest.mark.parametrize("times", ["24:00", "06:00 Moon/Base", "6", "06:00,,18:00"])
def test_times_that_are_none_are_refused(times: str) -> None:
    with pytest.raises(ValidationError, match="report_times"):
        GatewaySettings.model_validate({"mode": "local", "bootstrap": "x:1", "report_times": times})


def report() -> Alert:
    """A report of a tenant."""
    alert = Alert(id="r", incident="r", kind=Alert.KIND_REPORT, camera=EVERY_CAMERA, watch=SHIFT_REPORT)
    alert.tenant, alert.question = "north", "Report"
    alert.text.extend(["2 incidents began on 1 camera.", "Every question was answered all the time."])
    alert.start.FromMilliseconds(BEGIN_MS)
    alert.end.FromMilliseconds(BEGIN_MS + 8 * HOUR_MS)
    return alert


@pytest.mark.parametrize(
    ("notification", "is_told"),
    [
        (Notification(), True),
        (Notification(tenant="north"), True),
        (Notification(tenant="south"), False),
        (Notification(cameras=["gate*"]), False),
        (Notification(watches=["lying"]), False),
        (Notification(watches=[SHIFT_REPORT]), True),
        (Notification(events=[Notification.EVENT_OPENED]), False),
        (Notification(events=[Notification.EVENT_REPORT]), True),
    ],
)
def test_a_report_is_told_to_those_who_may_see_everything_in_it(
    notification: Notification, is_told: bool
) -> None:
    wants = wants_incident(notification, report(), SEVERITY_UNSPECIFIED, BEGIN_MS)
    assert (wants and wants_event(notification, report())) == is_told


def test_notify_tells_a_report_with_a_link_and_forgets_it() -> None:
    notifications = {
        "hook": Notification(id="hook", webhook=Webhook(url="https://x.example")),
        "late": Notification(id="late", webhook=Webhook(url="https://x.example"), unclaimed_s=60),
    }
    engine = Engine(lambda: notifications, lambda watch: SEVERITY_UNSPECIFIED)
    ((delivery,), _) = engine.take(report(), BEGIN_MS)
    assert delivery.notification == "hook"
    assert not engine.due(BEGIN_MS + 3 * HOUR_MS), "nobody takes a report up"
    settings = {"mode": "local", "bootstrap": "x:1", "public_url": "https://lookout.example"}
    event = Composer(NotifySettings.model_validate(settings)).message(delivery).event
    assert event.text.endswith(
        "UTC: 2 incidents began on 1 camera. Every question was answered all the time."
    )
    assert event.console_url.startswith("https://lookout.example/#/report?since=2026-")
    assert not event.picture_url
    engine.done(delivery)
    engine.sweep(BEGIN_MS + 25 * HOUR_MS)
    assert engine.changes() == {"r": None}


def test_no_watch_has_the_id_of_reports() -> None:
    with pytest.raises(RuleError, match="scheduled reports"):
        asked_question(Watch(id=SHIFT_REPORT, question="Is anyone there?"))
