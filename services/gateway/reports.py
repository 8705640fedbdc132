"""Composes reports, and publishes scheduled reports as alerts of the kind `report`, which notify delivers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, time as time_of_day, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import grpc

from lookout.runtime.net import Channels
from lookout.services.gateway.history import outages, queries
from lookout.services.gateway.history.asked import UNSEEN
from lookout.services.gateway.history.records import reported_fact
from lookout.services.gateway.history.shift import STRETCHES, shift_report
from lookout.services.gateway.history.shift_text import sentences
from lookout.services.gateway.history.tables import FACTS
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.pulls import why_nothing
from lookout.v1 import memory_pb2_grpc
from lookout.v1.access_pb2 import Role
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.gateway_pb2 import ShiftReport
from lookout.v1.memory_pb2 import ScoredSpan, UnusualRequest
from lookout.wire import CAMERAS, EVERY_CAMERA, SHIFT_REPORT, from_json, stable_id

_RECALL_S: Final = 10.0
#: milliseconds after a period's end in which its last windows are decided and stored
_SETTLED_MS: Final = 60_000
#: seconds that a gateway has for writing a report before another gateway tries
_LEASE_S: Final = 120.0
_SENTENCES: Final = 32


def composed(
    parts: Parts,
    principal: Principal,
    camera: str | None,
    begin_ms: int,
    end_ms: int,
    *,
    prose: bool,
    zone: str = "UTC",
    stretches: int = STRETCHES,
) -> ShiftReport:
    """Compose a report about what a caller may see.

    Args:
        parts: The gateway's parts.
        principal: The caller.
        camera: An id or glob; None: all.
        begin_ms: Begin of the range, Unix milliseconds.
        end_ms: End of the range, after `begin_ms`.
        prose: Whether a model writes prose too, if one is configured.
        zone: The time zone for the template sentences; prose uses UTC.
        stretches: Maximum number of stretches without answers to list.
    """
    with parts.database.reading() as connection:
        message = shift_report(connection, principal, camera, begin_ms, end_ms, stretches=stretches)
        cameras = queries.wholly_seen(connection, principal, camera)
        outages.explain(connection, message.unwatched)
    if cameras:
        about = UnusualRequest(
            cameras=[camera or "*"] if principal.unlimited else cameras,
            since_us=begin_ms * 1000,
            until_us=end_ms * 1000,
            exact=not principal.unlimited,
        )
        spans, message.note = _unusual(parts, about)
        message.unusual.extend(spans)
    _ask_agents(parts, message)
    message.sentences.extend(sentences(message))
    if prose and parts.prose is None:
        message.prose_note = "no prose: no model is configured; set LOOKOUT_PROSE_URL"
    elif prose and parts.prose is not None:
        parts.prose.write(message)
    if zone != "UTC":
        del message.sentences[:]
        message.sentences.extend(sentences(message, zone))
    return message


def _ask_agents(parts: Parts, message: ShiftReport) -> None:
    """Add the agents' reasons to the stretches in which cameras still send nothing."""
    silent = [stretch for stretch in message.unwatched if stretch.ongoing and stretch.reason == UNSEEN]
    if cameras := sorted({stretch.camera for stretch in silent}):
        reasons = why_nothing(parts.settings, cameras)
        for stretch in silent:
            stretch.said = reasons.get(stretch.camera, stretch.said)


def _unusual(parts: Parts, request: UnusualRequest) -> tuple[list[ScoredSpan], str]:
    """Return the unusual spans that recall knows, and a note that is empty unless they are unknown."""
    if parts.settings.recall is None:
        return [], "Unusual spans are available only in a fleet with memory"
    channel = Channels(parts.settings).open(parts.settings.recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        response = stub.Unusual(request, timeout=_RECALL_S)
        return list(response.spans), response.note
    except grpc.RpcError as error:
        return [], f"Unusual spans are unknown, because recall does not answer ({error.code().name})"
    finally:
        channel.close()


def note_outages(parts: Parts) -> None:
    """Store why agents get nothing from cameras, because agents no longer say so after an outage."""
    with parts.database.reading() as connection:
        rows = queries.documents(connection, CAMERAS.name)
    names = [row.key for row in rows if from_json(row.body, Camera).url]
    if names:
        outages.note(parts.database, why_nothing(parts.settings, names), round(time.time() * 1000))


class ScheduledReports:
    """Writes a report at each configured time of day, about the time since the previous report.

    Args:
        parts: The gateway's parts. If several gateways share a database, only one writes each report.
        clock: Unix seconds.
    """

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.time) -> None:
        self._parts, self._clock = parts, clock

    def write(self) -> None:
        """Write each tenant's newest report, if it is due and not in the history yet.

        Raises:
            WriteError: Kafka has not confirmed the report. Kafka may have the report nevertheless, so the
                next attempt uses the same id.
        """
        parts = self._parts
        begin_ms, end_ms = newest_period(parts.settings.report_times, 1000 * self._clock() - _SETTLED_MS)
        with parts.database.reading() as connection:
            names = queries.tenants(connection)
        for tenant in names:
            if self._is_due(tenant, end_ms):
                principal = Principal(SHIFT_REPORT, Role.ROLE_VIEWER, tenants=(tenant,))
                period = begin_ms, end_ms
                report = composed(parts, principal, None, *period, prose=parts.prose is not None)
                parts.writes.tell(alert_of(tenant, report))

    def _is_due(self, tenant: str, end_ms: int) -> bool:
        """Return whether this gateway must now write a tenant's report that ends at `end_ms`."""
        parts, name = self._parts, reported_fact(tenant)
        with parts.database.writing() as connection:
            reported = parts.database.fact(connection, name)
            if reported is None:  # a new tenant, whose first report covers the next period
                connection.execute(parts.database.insert_new(FACTS), {"name": name, "value": str(end_ms)})
                return False
        # The first gateway to ask writes the report. If it fails, its claim expires after `_LEASE_S`.
        return int(reported) < end_ms and parts.once.take(f"{name} {end_ms}", _LEASE_S)


def newest_period(times: str, now_ms: float) -> tuple[int, int]:
    """Return the begin and end of the newest period that is over, in Unix milliseconds.

    Args:
        times: Times of day, such as "06:00,18:00 Europe/Berlin"; UTC if no zone is given.
        now_ms: The current time, Unix milliseconds.
    """
    clocks, _, name = times.partition(" ")
    zone = ZoneInfo(name or "UTC")
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    ends = {
        round(
            1000
            * datetime.combine(today - timedelta(days), time_of_day.fromisoformat(clock), zone).timestamp()
        )
        for days in range(3)
        for clock in clocks.split(",")
    }
    begin_ms, end_ms = sorted(end for end in ends if end <= now_ms)[-2:]
    return begin_ms, end_ms


def alert_of(tenant: str, report: ShiftReport) -> Alert:
    """Return the alert that carries a report. Its ids are the same at every attempt.

    Args:
        tenant: The tenant whose cameras the report is about.
        report: The report, with its sentences.
    """
    lines = [sentence.text for sentence in (report.prose or report.sentences)[: _SENTENCES - 1]]
    if report.prose_note:
        lines.append(report.prose_note)
    identity = stable_id(SHIFT_REPORT, tenant, report.until.ToMilliseconds())
    event = Alert(
        id=identity,
        incident=identity,
        kind=Alert.KIND_REPORT,
        camera=EVERY_CAMERA,
        watch=SHIFT_REPORT,
        question="Report",
        tenant=tenant,
        text=[text[:1000] for text in lines],
    )
    event.start.CopyFrom(report.since)
    event.end.CopyFrom(report.until)
    return event
