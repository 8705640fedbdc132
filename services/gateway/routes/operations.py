"""Operations: dead letters, what cameras cost, how far the services have read."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Annotated, Final

from confluent_kafka import TopicPartition
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

import lookout
from lookout.errors import RecordsGoneError, TransientError
from lookout.runtime.kafka_clients import Consumer
from lookout.runtime.worker.record_reader import RecordReader
from lookout.services.gateway.guard import Administrator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import HOUR_MS
from lookout.services.gateway.history.records import erased
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.times import Moment, parse_ms
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.gateway_pb2 import CostReport, CostRow, DeadLetterPage, DeadLetterView, FleetView, LagRow
from lookout.wire import PIPELINE, RECORDING_FLOWS, from_own_json

router = APIRouter(prefix="/v1", tags=["operations"])
_ANSWER_S: Final = 10.0
_DAY_MS: Final = 24 * HOUR_MS
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get("/dead-letters", **route(DeadLetterPage))
def dead_letters(
    request: Request,
    principal: Viewer,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=20, description="`next` of the page before")] = "",
) -> Response:
    """Records that could not be processed, newest first."""
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
    """The bytes that could not be processed, as a download: nothing that a browser would show."""
    parts, name = parts_of(request), f"{topic}/{partition}/{offset}"
    with parts.database.reading() as connection:
        row = queries.letter(connection, principal, topic, partition, offset)
        # A segment's own time is in the bytes that nobody could read: any erasure of the camera hides them.
        hidden = row is not None and bool(erased(connection).of(row.key))
    if row is None or hidden:
        raise not_found("dead letter", name)
    reader = RecordReader(parts.settings)
    try:
        (record,) = reader.read(topic, partition, [offset], _ANSWER_S)
    except RecordsGoneError:
        raise ProblemError(404, f"{name}: retention has removed its bytes") from None
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


@router.get("/costs", **route(CostReport))
def costs(
    request: Request,
    principal: Viewer,
    camera: Annotated[str | None, Query(max_length=200, description="id or glob")] = None,
    since: Moment = None,
    until: Moment = None,
) -> Response:
    """What each camera's questions cost in FLOPs, by hours; the last day by default.

    What the questions of a window share is divided evenly among them. Money is each row's share of the price
    of one device over the time.
    """
    settings = parts_of(request).settings
    end_ms = parse_ms("until", until) or int(time.time() * 1000)
    begin_ms = parse_ms("since", since)
    begin_ms = max(0, end_ms - _DAY_MS) if begin_ms is None else begin_ms
    if begin_ms >= end_ms:
        raise ProblemError(400, "since: it must be before until")
    with parts_of(request).database.reading() as connection:
        series = queries.series_of(connection, principal, camera, None)
        sums = queries.sums(connection, series, begin_ms, end_ms, HOUR_MS)
    cameras = defaultdict(list)
    for member in series:
        if member.key in sums:
            cameras[member.camera, member.tenant].append(member)
    rows = []
    for (name, tenant), members in cameras.items():
        shared = max(sum(bucket.shared for bucket in sums[member.key].values()) for member in members)
        for member in members:
            buckets = sums[member.key].values()
            own = sum(bucket.own for bucket in buckets)
            count = sum(bucket.verdicts for bucket in buckets)
            flops = own + shared / len(members)
            rows.append(CostRow(camera=name, tenant=tenant, watch=member.watch, verdicts=count, flops=flops))
    total = sum(row.flops for row in rows)
    for row in rows:
        row.share = row.flops / total if total else 0.0
        if settings.price_per_hour is not None:
            row.money = row.share * settings.price_per_hour * (end_ms - begin_ms) / HOUR_MS
    message = CostReport(rows=rows, currency=settings.currency if settings.price_per_hour is not None else "")
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    return answer(message)


@router.get("/fleet", **route(FleetView))
def fleet(request: Request, principal: Administrator) -> Response:
    """The version, and how far the services have read their topics."""
    message = FleetView(version=lookout.__version__)
    for flow in (*PIPELINE.values(), *RECORDING_FLOWS):
        options = {"group.id": flow.group, "enable.auto.commit": False}
        consumer = Consumer(parts_of(request).settings.kafka(**options))
        try:
            topic = flow.source.name
            partitions = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in partitions]
            for place in consumer.committed(places, timeout=_ANSWER_S):
                low, high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
                committed = place.offset if place.offset >= 0 else low
                message.lag.append(
                    LagRow(
                        group=flow.group,
                        topic=topic,
                        partition=place.partition,
                        committed=committed,
                        end=high,
                        lag=max(0, high - committed),
                    )
                )
        finally:
            consumer.close()
    return answer(message)
