"""Finds when questions about cameras were asked. Reports and coverage compare the answers with this time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import sqlalchemy
from sqlalchemy import Connection

from lookout.rules import covers
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import DAY_MS, MINUTE_MS, Bucket, bucket_of, details
from lookout.services.gateway.history.queries import SeriesRow
from lookout.services.gateway.history.setups import FOREVER, Span, camera_spans, watch_spans
from lookout.services.gateway.history.tables import BUCKETS, SERIES
from lookout.services.gateway.principal import Principal
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, names_id

UNSEEN: Final = "unseen"
PAUSED: Final = "paused"
#: reason for time before a camera or watch was set up: nothing was asked, so no answer is missing
UNSET: Final = "unset"
#: milliseconds that an answer may take; a first or newest answer counts as missing only after this time
_SETTLING_MS: Final = 120_000


class Missing(NamedTuple):
    """A stretch of time (Unix milliseconds) in which `time_ms` milliseconds have no verdict, and the
    reason.
    """

    begin_ms: int
    end_ms: int
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskedTime:
    """A question about a camera, and when the question was asked within a range.

    Attributes:
        series: The camera and the watch; the key is 0 if they never had a verdict.
        begin_ms: When asking began, at the earliest the start of the range. All times are Unix milliseconds.
        seen_ms: End of the last minute in the range with a verdict; `begin_ms` if there is none.
        end_ms: When asking ended, but not before `seen_ms`.
        reason: Why time after `seen_ms` has no verdict: `UNSEEN` or `PAUSED`.
        away: Begin and end of each interruption, during which the question was not asked.
        changes: When the camera and the watch were added and removed: (time, name such as `camera-added`).
    """

    series: SeriesRow
    begin_ms: int
    seen_ms: int
    end_ms: int
    reason: str = UNSEEN
    away: tuple[tuple[int, int], ...] = ()
    changes: tuple[tuple[int, str], ...] = ()

    def buckets(self, size_ms: int) -> range:
        """Return the begins (Unix milliseconds) of the buckets that overlap this time."""
        return range(self.begin_ms // size_ms * size_ms, self.end_ms, size_ms)

    def missing(self, at_ms: int, size_ms: int, bucket: Bucket | None) -> Iterator[Missing]:
        """Yield the time in a bucket that no verdict covers, separately for the time before and after the
        last verdict.

        The time after the last verdict begins at `seen_ms`, even in buckets longer than a minute. The last
        verdict may end anywhere within its minute, so up to a minute before `seen_ms` does not count as
        missing.
        """
        begin_ms, end_ms = max(at_ms, self.begin_ms), min(at_ms + size_ms, self.end_ms)
        middle_ms = min(max(begin_ms, self.seen_ms), end_ms)
        left_ms = end_ms - begin_ms - (0 if bucket is None else sum(bucket.times))
        left_ms -= sum(max(0, min(end_ms, until) - max(begin_ms, since)) for since, until in self.away)
        if at_ms < self.seen_ms == self.end_ms <= at_ms + size_ms:
            left_ms -= MINUTE_MS
        if begin_ms < self.seen_ms <= at_ms + size_ms and self.seen_ms < self.end_ms:
            # The last verdict ends within its minute, so the rest of that minute belongs to the time after
            # it.
            middle_ms -= min(MINUTE_MS, max(0, left_ms - (end_ms - middle_ms)))
        after_ms = max(0, min(left_ms, end_ms - middle_ms))
        if (before_ms := left_ms - after_ms) > 0:
            yield Missing(begin_ms, middle_ms, before_ms, UNSEEN)
        if after_ms > 0:
            yield Missing(middle_ms, end_ms, after_ms, self.reason)


class _First(NamedTuple):
    """When a series' first verdict began, since when the history is complete, and when its newest verdict
    ended.
    """

    begin_ms: int
    known_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class _Range:
    """A range, and the present time, in Unix milliseconds."""

    begin_ms: int
    end_ms: int
    now_ms: int


def asked_times(
    connection: Connection,
    principal: Principal,
    camera: str | None,
    watch: str | None,
    *,
    begin_ms: int,
    end_ms: int,
    now_ms: float,
) -> Iterator[AskedTime]:
    """Yield, for each question about a camera that was asked in a range, when it was asked.

    A question is asked while its watch and its camera are both set up and the watch covers the camera. A
    camera that publishes by itself counts as set up from its first verdict on. Time with verdicts always
    counts as asked.

    Args:
        connection: A connection to the history.
        principal: The reader.
        camera: An id or glob; None: all.
        watch: An id; None: all.
        begin_ms: Begin of the range, Unix milliseconds.
        end_ms: End of the range.
        now_ms: The current time; nothing is asked after it.
    """
    span = _Range(begin_ms, end_ms, round(now_ms))
    firsts = _first_verdicts(connection, begin_ms)
    cameras: dict[tuple[str, str], dict[str, SeriesRow]] = {}
    for series in queries.series_of(connection, principal, camera, None):
        cameras.setdefault((series.camera, series.tenant), {})[series.watch] = series
    pulled = camera_spans(connection)
    for name, tenant in pulled:
        if (camera is None or names_id(camera, name)) and principal.sees(name, tenant):
            cameras.setdefault((name, tenant), {})
    heard = {(row.id, row.tenant): row.seen_ms for row in queries.cameras_of(connection, principal, camera)}
    watches = watch_spans(connection)
    watches.pop(CAMERA_OFFLINE, None)
    for (name, tenant), with_verdicts in sorted(cameras.items()):
        begun = [firsts[series.key].begin_ms for series in with_verdicts.values() if series.key in firsts]
        begun_ms = min(begun, default=FOREVER)
        places = _set_up(pulled.get((name, tenant), []), begun_ms, heard.get((name, tenant), 0))
        for asks in sorted({*watches, *with_verdicts} if watch is None else {watch}):
            series = with_verdicts.get(asks, SeriesRow(0, name, tenant, asks))
            if series.key and series.key not in firsts:
                continue  # the series' verdicts were erased or are too old
            spans = list(_both(watches.get(asks, []), places, series))
            time = _asked(connection, series, firsts.get(series.key), spans, span)
            if time is not None:
                changes = (*_changes(places, "camera"), *_changes(watches.get(asks, []), "watch"))
                yield replace(time, changes=changes)


def _changes(spans: list[Span[Any]], kind: str) -> Iterator[tuple[int, str]]:
    """Yield when a camera or watch was added and removed. Where two spans adjoin, it was only changed."""
    for place, span in enumerate(spans):
        if not place or spans[place - 1].end_ms < span.begin_ms:
            yield span.begin_ms, f"{kind}-added"
        if place + 1 == len(spans) or span.end_ms < spans[place + 1].begin_ms:
            yield span.end_ms, f"{kind}-removed"


def _set_up(pulled: list[Span[str]], begun_ms: int, heard_ms: int) -> list[Span[str]]:
    """Return when a camera was set up: while an agent was supposed to pull it, or from its first verdict on
    if that is earlier. A removed camera that still sends footage counts as publishing by itself.
    """
    if not pulled or heard_ms > pulled[-1].end_ms + _SETTLING_MS:
        return [Span(begun_ms, FOREVER, "")]
    return [pulled[0]._replace(begin_ms=min(pulled[0].begin_ms, begun_ms)), *pulled[1:]]


def _both(watches: list[Span[Watch]], places: list[Span[str]], series: SeriesRow) -> Iterator[Span[Watch]]:
    """Yield when a watch covered a camera while the camera was set up."""
    for asks in watches:
        if covers(asks.value, series.camera, series.tenant):
            for place in places:
                span = Span(max(asks.begin_ms, place.begin_ms), min(asks.end_ms, place.end_ms), asks.value)
                if span.begin_ms < span.end_ms:
                    yield span


def _asked(
    connection: Connection, series: SeriesRow, first: _First | None, spans: list[Span[Watch]], span: _Range
) -> AskedTime | None:
    """Return when a question about a camera was asked within a range; None if it was not asked.

    Args:
        connection: A connection to the history.
        series: The camera and the watch.
        first: The series' first verdict.
        spans: When the watch covered the camera.
        span: The range.
    """
    # A pause before the first verdict does not count as asked time.
    first_ms = FOREVER if first is None else first.begin_ms
    spans = [piece for piece in spans if not piece.value.disabled or piece.end_ms > first_ms]
    since_ms, last_ms = first_ms, 0
    if spans:
        set_up_ms = max(spans[0].begin_ms, 0 if first is None else first.known_ms)
        last_ms = set_up_ms
        if first_ms - set_up_ms > _SETTLING_MS:
            since_ms = set_up_ms
    start_ms = max(span.begin_ms, since_ms)
    if start_ms >= span.end_ms:
        return None
    minutes = queries.minutes_seen(connection, series, span.begin_ms, span.end_ms) if series.key else None
    seen_ms = start_ms if minutes is None else max(start_ms, min(span.end_ms, minutes[1]))
    if first is not None:
        last_ms = first.last_ms
    decided_ms = span.now_ms - (0 if span.now_ms - last_ms > _SETTLING_MS else _SETTLING_MS)
    until_ms = max(seen_ms, min(span.end_ms, decided_ms, spans[-1].end_ms if spans else 0))
    if minutes is None and until_ms <= start_ms:
        return None
    asking = [piece.value for piece in spans if piece.begin_ms < until_ms]
    reason = PAUSED if asking and asking[-1].disabled else UNSEEN
    away = [
        (piece.end_ms, after.begin_ms) for piece, after in pairwise(spans) if piece.end_ms < after.begin_ms
    ]
    return AskedTime(series, start_ms, seen_ms, until_ms, reason, tuple(away))


def _first_verdicts(connection: Connection, begin_ms: int) -> dict[int, _First]:
    """Return each series' first verdict, by the series' key. The verdict's begin is exact only if it is after
    `begin_ms`.

    A rebuilt history lacks verdicts that Kafka no longer had. For a partition that was not read from offset
    0, the history is complete only from its first verdict on.
    """

    def first(level: int) -> sqlalchemy.ScalarSelect[int]:
        mine = (BUCKETS.c.level == level, BUCKETS.c.series == SERIES.c.key)
        return sqlalchemy.select(sqlalchemy.func.min(BUCKETS.c.start_ms)).where(*mine).scalar_subquery()

    begins = sqlalchemy.select(
        SERIES.c.key, SERIES.c.last_ms, first(DAY_MS).label("day"), first(MINUTE_MS).label("minute")
    )
    days = begins.subquery()
    of_day = (BUCKETS.c.level == DAY_MS, BUCKETS.c.series == days.c.key, BUCKETS.c.start_ms == days.c.day)
    rows = connection.execute(
        sqlalchemy.select(days, BUCKETS.c.partition, BUCKETS.c.first).join(BUCKETS, sqlalchemy.and_(*of_day))
    ).all()
    complete = {row.partition for row in rows if row.first == 0}
    times = {}
    for row in rows:
        by_minute = row.minute is not None and row.minute < row.day + DAY_MS
        level, at_ms = (MINUTE_MS, row.minute) if by_minute else (DAY_MS, row.day)
        times[row.key] = _begin(connection, row.key, level, at_ms) if at_ms + level > begin_ms else at_ms
    oldest_ms = min(times.values(), default=0)
    return {
        row.key: _First(times[row.key], 0 if row.partition in complete else oldest_ms, row.last_ms)
        for row in rows
    }


def _begin(connection: Connection, series: int, level: int, at_ms: int) -> int:
    """Return when a bucket's first verdict began, in Unix milliseconds. The time is exact while single
    verdicts are kept. After that, it is estimated as if the verdicts reached the bucket's end.
    """
    mine = (BUCKETS.c.level == level, BUCKETS.c.series == series, BUCKETS.c.start_ms == at_ms)
    row = connection.execute(sqlalchemy.select(BUCKETS).where(*mine)).one()
    if row.detail:
        return min(piece.start_ms for piece in details(at_ms, bytes(row.detail)))
    return at_ms + level - min(level, sum(bucket_of(row).times))
