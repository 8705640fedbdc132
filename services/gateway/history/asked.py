"""When questions about cameras were asked: what a report and coverage measure answers against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import sqlalchemy
from sqlalchemy import Connection

from lookout.rules import covers
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import DAY_MS, MINUTE_MS, Bucket
from lookout.services.gateway.history.queries import SeriesRow
from lookout.services.gateway.history.tables import BUCKETS, SERIES
from lookout.services.gateway.principal import Principal
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, CAMERAS, WATCHES, from_json, names_id, tenant_of

UNSEEN: Final = "unseen"
PAUSED: Final = "paused"
#: before the first answer: nothing was asked yet, so nothing was missed
UNSET: Final = "unset"
#: the newest windows are not decided yet
_SETTLING_MS: Final = 120_000


class Missing(NamedTuple):
    """A stretch of which no verdict covers `time_ms`, in Unix milliseconds, and why."""

    begin_ms: int
    end_ms: int
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskedTime:
    """A question about a camera, and when it was asked within a range.

    Attributes:
        series: The camera and the watch; its key is 0 where it never had a verdict.
        begin_ms: When asking began, or the range did; Unix milliseconds, as are the others.
        seen_ms: End of the last minute with a verdict in the range, or `begin_ms`.
        end_ms: When asking ended: not before `seen_ms`.
        new: Whether the first verdict of all lies in the range.
        reason: Why time after `seen_ms` has no verdict: `UNSEEN` or `PAUSED`.
        rounding_ms: How exactly the first verdict is known: to its minute, or to its day.
    """

    series: SeriesRow
    begin_ms: int
    seen_ms: int
    end_ms: int
    new: bool
    reason: str = UNSEEN
    rounding_ms: int = MINUTE_MS

    def buckets(self, size_ms: int) -> range:
        """Return the begins of the buckets of this time."""
        return range(self.begin_ms // size_ms * size_ms, self.end_ms, size_ms)

    def missing(self, at_ms: int, size_ms: int, bucket: Bucket | None) -> Iterator[Missing]:
        """Find what no verdict covers of a bucket: before the last verdict, and after it.

        Buckets may be longer than a minute; the silence after the last verdict begins with its minute anyway.
        The first verdict of all begins, and the last one ends, somewhere within its minute: that much is not
        missing.
        """
        begin_ms, end_ms = max(at_ms, self.begin_ms), min(at_ms + size_ms, self.end_ms)
        middle_ms = min(max(begin_ms, self.seen_ms), end_ms)
        left_ms = end_ms - begin_ms - (0 if bucket is None else sum(bucket.times))
        if at_ms < self.seen_ms == self.end_ms <= at_ms + size_ms:
            left_ms -= self.rounding_ms
        if begin_ms < self.seen_ms <= at_ms + size_ms and self.seen_ms < self.end_ms:
            # The last verdict ends within its minute: what is missing of that belongs to the silence.
            middle_ms -= min(MINUTE_MS, max(0, left_ms - (end_ms - middle_ms)))
        after_ms = max(0, min(left_ms, end_ms - middle_ms))
        # What may lie before the first verdict is taken off the time before the last one, not the silence.
        begun_ms = self.rounding_ms if self.new and at_ms <= self.begin_ms else 0
        if (before_ms := left_ms - after_ms - begun_ms) > 0:
            yield Missing(begin_ms, middle_ms, before_ms, UNSEEN)
        if after_ms > 0:
            yield Missing(middle_ms, end_ms, after_ms, self.reason)


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
    """Find when the questions about cameras were asked.

    A question is asked from its first verdict about a camera on, and until now if its watch still covers
    the camera; otherwise until its last verdict. A camera that is to be pulled and never sent anything counts
    from when it was added.

    Args:
        connection: A connection to the history.
        principal: The reader.
        camera: An id or glob; None: all.
        watch: An id; None: all.
        begin_ms: Begin of the range, Unix milliseconds.
        end_ms: End of the range.
        now_ms: The present time; nothing is asked after it.
    """
    rows = [from_json(row.body, Watch) for row in queries.documents(connection, WATCHES.name)]
    by_model = [row for row in rows if row.id != CAMERA_OFFLINE]
    watches = {row.id: row for row in by_model if watch is None or row.id == watch}
    settled_ms = min(end_ms, round(now_ms) - _SETTLING_MS)
    firsts = _first_verdicts(connection)
    with_verdicts = set()
    for series in queries.series_of(connection, principal, camera, watch):
        with_verdicts.add((series.camera, series.tenant))
        first_ms, rounding_ms = firsts.get(series.key, (end_ms, 0))
        if first_ms >= end_ms:
            continue
        start_ms = max(begin_ms, first_ms)
        minutes = queries.minutes_seen(connection, series, begin_ms, end_ms)
        seen_ms = start_ms if minutes is None else min(end_ms, minutes[1])
        asks = watches.get(series.watch)
        still = asks is not None and covers(asks, series.camera, series.tenant)
        if minutes is None and not still:
            continue
        until_ms = max(seen_ms, settled_ms if still else 0)
        reason = PAUSED if asks is not None and asks.disabled else UNSEEN
        yield AskedTime(series, start_ms, seen_ms, until_ms, first_ms > begin_ms, reason, rounding_ms)
    for series, added_ms in _never_seen(connection, principal, camera, list(watches.values())):
        start_ms = max(begin_ms, added_ms)
        if (series.camera, series.tenant) not in with_verdicts and start_ms < settled_ms:
            yield AskedTime(series, start_ms, start_ms, settled_ms, new=False)


def _first_verdicts(connection: Connection) -> dict[int, tuple[int, int]]:
    """The minute of the first verdict by series, or its day where the minutes are gone; and which."""

    def first(level: int) -> sqlalchemy.ScalarSelect[int]:
        mine = (BUCKETS.c.level == level, BUCKETS.c.series == SERIES.c.key)
        return sqlalchemy.select(sqlalchemy.func.min(BUCKETS.c.start_ms)).where(*mine).scalar_subquery()

    query = sqlalchemy.select(SERIES.c.key, first(DAY_MS).label("day"), first(MINUTE_MS).label("minute"))
    out: dict[int, tuple[int, int]] = {}
    for row in connection.execute(query):
        if row.day is not None:
            kept = row.minute is not None and row.minute < row.day + DAY_MS
            out[row.key] = (row.minute, MINUTE_MS) if kept else (row.day, DAY_MS)
    return out


def _never_seen(
    connection: Connection, principal: Principal, camera: str | None, watches: list[Watch]
) -> Iterator[tuple[SeriesRow, int]]:
    """Questions about cameras that agents are to pull, and since when; some may have verdicts."""
    for document in queries.documents(connection, CAMERAS.name):
        source = from_json(document.body, Camera)
        tenant = tenant_of(source.tenant)
        if not source.url or not principal.sees(source.id, tenant):
            continue
        if camera is not None and not names_id(camera, source.id):
            continue
        for asks in watches:
            if not asks.disabled and covers(asks, source.id, tenant):
                since_ms = max(document.written_ms, asks.active_from.ToMilliseconds())
                yield SeriesRow(0, source.id, tenant, asks.id), since_ms
