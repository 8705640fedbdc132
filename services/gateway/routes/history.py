"""What was watched and what the answers were: timelines, coverage, single verdicts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from lookout.rules import Outcome
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.topic_reader import End, TopicReader
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.asked import UNSEEN, asked_times
from lookout.services.gateway.history.buckets import MINUTE_MS, Bucket
from lookout.services.gateway.history.verdict_rows import OUTCOMES
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.alerts_pb2 import Coverage
from lookout.v1.gateway_pb2 import (
    CoverageReport,
    CoverageRow,
    Timeline,
    TimelineBucket,
    TimelineSeries,
    VerdictList,
)
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, WireError
from lookout.wire.door import received

router = APIRouter(prefix="/v1", tags=["history"])
_HOUR_MS: Final = 3_600_000
#: allowed lengths of a bucket, in seconds
SIZES: Final = (1, 2, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 21_600, 86_400)
#: maximum number of verdicts in one answer, and of records to read for it
_VERDICTS: Final = 2000
_READ: Final = 500_000
_ANSWER_S: Final = 10.0


def _range(since: str | None, until: str | None, span_ms: int) -> tuple[int, int]:
    end_ms = parse_ms("until", until) or int(time.time() * 1000)
    begin_ms = parse_ms("since", since)
    begin_ms = max(0, end_ms - span_ms) if begin_ms is None else begin_ms
    if begin_ms >= end_ms:
        raise ProblemError(400, "since: must be before until")
    return begin_ms, end_ms


@router.get("/timeline", **route(Timeline))
def timeline(
    request: Request,
    principal: Viewer,
    camera: Annotated[str, Query(max_length=200, description="id or glob")],
    watch: Annotated[str | None, Query(max_length=200)] = None,
    since: Moment = None,
    until: Moment = None,
    bucket: Annotated[
        int | None,
        Query(description=f"seconds: one of {', '.join(map(str, SIZES))}; default: about 500 buckets"),
    ] = None,
) -> Response:
    """Return sums of verdicts by camera, watch and time; by default for the last day."""
    begin_ms, end_ms = _range(since, until, 24 * _HOUR_MS)
    span_s = (end_ms - begin_ms) / 1000
    size_s = bucket or next((size for size in SIZES if span_s / size <= 500), SIZES[-1])
    if size_s not in SIZES:
        raise ProblemError(400, f"bucket: {size_s} is not one of {', '.join(map(str, SIZES))} seconds")
    with parts_of(request).database.reading() as connection:
        series = queries.series_of(connection, principal, camera, watch)
        if len(series) * span_s / size_s > queries.BUCKETS_AT_MOST:
            raise ProblemError(
                400,
                f"{len(series)} series of {span_s / size_s:.0f} buckets exceed the limit of "
                f"{queries.BUCKETS_AT_MOST} buckets: ask for longer buckets, a shorter time or fewer cameras",
            )
        sums = queries.sums(connection, series, begin_ms, end_ms, size_s * 1000)
    message = Timeline(bucket_s=size_s)
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    for entry in series:
        buckets = sums.get(entry.key)
        if buckets:
            row = TimelineSeries(camera=entry.camera, tenant=entry.tenant, watch=entry.watch)
            row.buckets.extend(_bucket(start, buckets[start]) for start in sorted(buckets))
            message.series.append(row)
    return answer(message)


def _bucket(start_ms: int, bucket: Bucket) -> TimelineBucket:
    times = dict(zip(OUTCOMES, bucket.times, strict=True))
    message = TimelineBucket(
        verdicts=bucket.verdicts,
        answers=bucket.answers,
        watched_s=times[Outcome.ANSWERED] / 1000,
        idle_s=times[Outcome.IDLE] / 1000,
        gap_s=times[Outcome.GAP] / 1000,
        degraded_s=times[Outcome.DEGRADED] / 1000,
        skipped_s=times[Outcome.SKIPPED] / 1000,
        gated_s=times[Outcome.GATED] / 1000,
    )
    message.start.FromMilliseconds(start_ms)
    if bucket.answers:
        message.p_max, message.p_mean = bucket.p_max, bucket.p_sum / bucket.answers
    return message


@router.get("/coverage", **route(CoverageReport))
def coverage(
    request: Request,
    principal: Viewer,
    camera: CameraGlob = None,
    watch: Annotated[str | None, Query(max_length=200)] = None,
    since: Moment = None,
    until: Moment = None,
) -> Response:
    """Return how much of each watch's time was analysed, to the minute; by default for the last day."""
    begin_ms, end_ms = _range(since, until, 24 * _HOUR_MS)
    size_ms = MINUTE_MS if end_ms - begin_ms <= 2 * 24 * _HOUR_MS else _HOUR_MS
    message = CoverageReport()
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    with parts_of(request).database.reading() as connection:
        now_ms = time.time() * 1000
        asked = list(
            asked_times(connection, principal, camera, watch, begin_ms=begin_ms, end_ms=end_ms, now_ms=now_ms)
        )
        series = [question.series for question in asked if question.series.key]
        sums = queries.sums(connection, series, begin_ms, end_ms, size_ms)
    for question in asked:
        entry, buckets = question.series, sums.get(question.series.key, {})
        totals = dict.fromkeys(Outcome, 0.0)
        for bucket in buckets.values():
            for outcome, time_ms in zip(OUTCOMES, bucket.times, strict=True):
                totals[outcome] += time_ms / 1000
        row = CoverageRow(camera=entry.camera, tenant=entry.tenant, watch=entry.watch)
        row.coverage.CopyFrom(
            Coverage(
                answered_s=totals[Outcome.ANSWERED],
                idle_s=totals[Outcome.IDLE],
                gap_s=totals[Outcome.GAP],
                skipped_s=totals[Outcome.SKIPPED],
                degraded_s=totals[Outcome.DEGRADED],
                gated_s=totals[Outcome.GATED],
            )
        )
        missing_ms = sum(
            stretch.time_ms
            for at_ms in question.buckets(size_ms)
            for stretch in question.missing(at_ms, size_ms, buckets.get(at_ms))
            if stretch.reason == UNSEEN
        )
        row.unseen_s = missing_ms / 1000
        message.rows.append(row)
    return answer(message)


@router.get("/verdicts", **route(VerdictList))
def verdicts(
    request: Request,
    principal: Viewer,
    camera: Annotated[str, Query(max_length=200, description="the camera's id")],
    watch: Annotated[str | None, Query(max_length=200)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=_VERDICTS)] = 500,
) -> Response:
    """Return a camera's single verdicts from Kafka, by the end of their windows; by default for five
    minutes.
    """
    begin_ms, end_ms = _range(since, until, 300_000)
    if end_ms - begin_ms > _HOUR_MS:
        raise ProblemError(
            400, "since: single verdicts are available for at most an hour at a time; /v1/timeline has sums"
        )
    parts = parts_of(request)
    with parts.database.reading() as connection:
        series = [
            entry for entry in queries.series_of(connection, principal, None, watch) if entry.camera == camera
        ]
        places = queries.verdict_places(connection, series, begin_ms, end_ms)
    by_end: dict[int, list[Verdict]] = defaultdict(list)
    count = 0
    for verdict in _read(parts.settings, camera, places):
        at_ms = verdict.end.ToMilliseconds()
        if (
            begin_ms <= at_ms < end_ms
            and (watch is None or verdict.watch == watch)
            and principal.sees(camera, verdict.tenant)
        ):
            by_end[at_ms].append(verdict)
            count += 1
            if count > limit:
                break
    rows = [verdict for at_ms in sorted(by_end) for verdict in by_end[at_ms]]
    return answer(VerdictList(verdicts=rows[:limit], complete=count <= limit))


def _read(settings: GatewaySettings, camera: str, places: Mapping[int, tuple[int, int]]) -> Iterator[Verdict]:
    """Yield a camera's verdicts from ranges of offsets, without the verdicts that retention removed."""
    if not places:
        return
    reader = TopicReader(settings, "gateway-verdicts", options={"auto.offset.reset": "earliest"})
    try:
        reader.read_from(VERDICTS.name, {number: first for number, (first, _) in places.items()})
        reading, read = set(places), 0
        key, deadline = camera.encode(), time.monotonic() + _ANSWER_S
        while reading and read < _READ and time.monotonic() < deadline:
            message = reader.next(0.2)
            if message is None:
                continue
            if isinstance(message, End):
                reading.discard(message.partition)
                continue
            read += 1
            number, offset = message.partition() or 0, message.offset() or 0
            if offset >= places[number][1]:
                reading.discard(number)
            if message.key() == key and offset <= places[number][1]:
                with suppress(WireError):
                    yield received(Verdict, record_of(message))
    finally:
        reader.close()
