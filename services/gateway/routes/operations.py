"""Operations: dead letters, cameras' and tenants' costs, and the fleet's state."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Annotated, Final

from confluent_kafka import KafkaException
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

import lookout
from lookout.errors import RecordsGoneError, TransientError
from lookout.runtime.kafka_clients import error_text
from lookout.runtime.observe import logs
from lookout.runtime.worker.record_reader import RecordReader
from lookout.services.gateway import fleet_state
from lookout.services.gateway.guard import Administrator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import DAY_MS
from lookout.services.gateway.history.records import erased
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.gateway_pb2 import (
    CostReport,
    CostRow,
    DeadLetterPage,
    DeadLetterView,
    FleetView,
    UsageReport,
    UsageRow,
)
from lookout.wire import from_own_json

router = APIRouter(prefix="/v1", tags=["operations"])
_ANSWER_S: Final = 10.0
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get("/dead-letters", **route(DeadLetterPage))
def dead_letters(
    request: Request,
    principal: Viewer,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=20, description="`next` from the previous page")] = "",
) -> Response:
    """List records that could not be processed, newest first."""
    with parts_of(request).database.reading() as connection:
        bodies, following = queries.letters(connection, principal, after, limit)
    return answer(
        DeadLetterPage(letters=[from_own_json(body, DeadLetterView) for body in bodies], next=following)
    )


@router.get("/dead-letters/{topic}/{partition}/{offset}", **route(None, media=_BYTES))
def dead_letter(
    request: Request,
    principal: Viewer,
    asked: Asked,
    topic: Annotated[str, Path(max_length=249)],
    partition: Annotated[int, Path(ge=0, le=2**31 - 1)],
    offset: Annotated[int, Path(ge=0, le=2**63 - 1)],
) -> Response:
    """Return the bytes that could not be processed, as a download that browsers do not display."""
    parts, name = parts_of(request), f"{topic}/{partition}/{offset}"
    with parts.database.reading() as connection:
        row = queries.letter(connection, principal, topic, partition, offset)
        # A segment's time is in bytes that could not be read, so any erasure of the camera hides them.
        hidden = row is not None and bool(erased(connection).of(row.key))
    if row is None or hidden:
        raise not_found("dead letter", name)
    reader = RecordReader(parts.settings)
    try:
        (record,) = reader.read(topic, partition, [offset], _ANSWER_S)
    except RecordsGoneError:
        raise ProblemError(404, f"{name}: Kafka's retention has removed its bytes") from None
    except TransientError as error:
        raise ProblemError(503, f"{error}: try again", {"Retry-After": "2"}) from error
    finally:
        reader.close()
    parts.writes.note(
        principal, asked, entry("dead-letter.view", name, camera=row.key[:200], tenant=row.tenant)
    )
    file = f"{topic}-{partition}-{offset}.bin"
    return Response(
        record.value,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{file}"',
            "Content-Security-Policy": "sandbox; default-src 'none'",
        },
    )


def _day(since: str | None, until: str | None) -> tuple[int, int]:
    """Parse a time range to Unix milliseconds; by default the last day."""
    end_ms = parse_ms("until", until) or int(time.time() * 1000)
    begin_ms = parse_ms("since", since)
    begin_ms = max(0, end_ms - DAY_MS) if begin_ms is None else begin_ms
    if begin_ms >= end_ms:
        raise ProblemError(400, "since: must be before until")
    return begin_ms, end_ms


def _money(settings: GatewaySettings, device_s: float) -> float | None:
    """Return what device time costs; None if no price is set."""
    return None if settings.price_per_hour is None else settings.price_per_hour * device_s / 3600


@router.get("/costs", **route(CostReport))
def costs(
    request: Request,
    principal: Viewer,
    camera: CameraGlob = None,
    since: Moment = None,
    until: Moment = None,
) -> Response:
    """Return what each camera's questions cost, rounded to hours; by default for the last day.

    Device seconds are measured, and money is their price. A window's shared cost is divided evenly among its
    questions.
    """
    settings = parts_of(request).settings
    begin_ms, end_ms = _day(since, until)
    with parts_of(request).database.reading() as connection:
        spent = queries.costs(connection, principal, camera, begin_ms, end_ms)
    rows = [
        CostRow(
            camera=cost.camera,
            tenant=cost.tenant,
            watch=cost.watch,
            verdicts=cost.verdicts,
            flops=cost.flops,
            device_s=cost.device_s,
            money=_money(settings, cost.device_s),
        )
        for cost in spent
    ]
    total = sum(row.flops for row in rows)
    for row in rows:
        row.share = row.flops / total if total else 0.0
    message = CostReport(rows=rows, currency=settings.currency if settings.price_per_hour is not None else "")
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    return answer(message)


@router.get("/usage", **route(UsageReport))
def usage(request: Request, principal: Viewer, since: Moment = None, until: Moment = None) -> Response:
    """Return what each tenant used, rounded to hours; by default for the last day."""
    settings = parts_of(request).settings
    begin_ms, end_ms = _day(since, until)
    with parts_of(request).database.reading() as connection:
        spent = queries.costs(connection, principal, None, begin_ms, end_ms)
        incidents = queries.incidents_by_tenant(connection, principal, begin_ms, end_ms)
    rows = {tenant: UsageRow(tenant=tenant, incidents=count) for tenant, count in incidents.items()}
    cameras = defaultdict(set)
    for cost in spent:
        row = rows.setdefault(cost.tenant, UsageRow(tenant=cost.tenant))
        row.verdicts += cost.verdicts
        row.answers += cost.answers
        row.flops += cost.flops
        row.device_s += cost.device_s
        cameras[cost.tenant].add(cost.camera)
    for row in rows.values():
        row.cameras = len(cameras[row.tenant])
        if (money := _money(settings, row.device_s)) is not None:
            row.money = money
    message = UsageReport(
        rows=[rows[tenant] for tenant in sorted(rows)],
        currency=settings.currency if settings.price_per_hour is not None else "",
    )
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    return answer(message)


@router.get("/fleet", **route(FleetView))
def fleet(request: Request, principal: Administrator) -> Response:
    """Return the services with their versions, how far they have read, and the findings of `lookout
    doctor`.
    """
    settings = parts_of(request).settings
    try:
        return answer(
            FleetView(
                version=lookout.__version__,
                lag=fleet_state.lag_rows(settings),
                services=fleet_state.service_rows(settings),
                findings=fleet_state.findings(settings),
            )
        )
    except KafkaException as error:
        # If Kafka does not answer, show the findings instead of an error.
        findings = list(fleet_state.findings(settings))
        logs.get("gateway").warning("the fleet's lag is unknown", error=error_text(error.args[0]))
        return answer(FleetView(version=lookout.__version__, findings=findings))
