"""A report that was due while its gateway was away is written once and reaches those who asked for it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy

from lookout.local import KafkaServer
from lookout.services.gateway.history.records import reported_fact
from lookout.services.gateway.history.tables import FACTS
from lookout.v1.alerts_pb2 import Alert
from lookout.wire import ALERTS, DEFAULT_TENANT, from_json
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_records import alert, publish, records, watch
from tests.fleet.notify_case import HookServer, NotifyProcess, configure, notifying, webhook

pytestmark = pytest.mark.fleet


def facts(process: GatewayProcess, name: str, value: str | None = None) -> str | None:
    """A fact of the history; with a value it becomes this one."""
    engine = sqlalchemy.create_engine(process.database)
    with engine.begin() as connection:
        if value is not None:
            connection.execute(FACTS.update().where(FACTS.c.name == name).values(value=value))
        found = connection.scalar(sqlalchemy.select(FACTS.c.value).where(FACTS.c.name == name))
    engine.dispose()
    return found


def reports(bootstrap: str) -> list[Alert]:
    """Every report in the topic of alerts."""
    alerts = [from_json(message.value(), Alert) for message in records(bootstrap, ALERTS.name)]
    return [event for event in alerts if event.kind == Alert.KIND_REPORT]


@pytest.mark.long
def test_a_report_that_was_due_meanwhile_is_told_once(
    broker: KafkaServer, redis_url: str, tmp_path: Path
) -> None:
    times = f"{(datetime.now(UTC) - timedelta(minutes=5)):%H:%M}"
    with ExitStack() as stack:
        hook = stack.enter_context(HookServer())
        process = gateway(stack, tmp_path, broker.bootstrap, redis_url, {"report_times": times})
        publish(broker.bootstrap, [watch(), alert("gate", 1)])
        name = reported_fact(DEFAULT_TENANT)
        newest = eventually(lambda: facts(process, name))
        process.service.stop(10.0)
        assert reports(broker.bootstrap) == []
        facts(process, name, str(int(newest) - timedelta(days=1) // timedelta(milliseconds=1)))

        configure(broker.bootstrap, webhook("shift", hook.url))
        stack.enter_context(notifying(NotifyProcess(tmp_path, broker.bootstrap, redis_url)))
        process.start()
        told = eventually(lambda: [hit for hit in hook.taken() if hit.happened["kind"] == "report"])
        eventually(lambda: facts(process, name) == newest)

        (written,) = reports(broker.bootstrap)
        assert [hit.happened["id"] for hit in told] == [written.id]
        assert written.end.ToMilliseconds() == int(newest)
        assert told[0].happened["text"] == list(written.text) != []
        assert hook.faults == []
