"""The content of a report about a time: hours with their incidents, and stretches without answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from lookout.services.gateway.history import queries
from lookout.services.gateway.history.asked import AskedTime, Missing, asked_times
from lookout.services.gateway.history.buckets import HOUR_MS, MINUTE_MS, Bucket
from lookout.services.gateway.history.verdict_rows import OUTCOMES
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.principal import Principal
from lookout.v1.gateway_pb2 import ReportHour, ShiftReport, UnwatchedTime

#: incidents and stretches that a report lists
_INCIDENTS: Final = 200
_UNWATCHED: Final = 1000
#: shorter stretches are the rounding of windows to minutes
_LEAST_MS: Final = 1000


@dataclass(slots=True)
class Unwatched:
    """A stretch in which a question about a camera had no answer; `time_ms` of it are unanswered."""

    camera: str
    tenant: str
    watch: str
    begin_ms: int
    end_ms: int
    reason: str
    time_ms: int

    def touches(self, later: Unwatched) -> bool:
        """Whether another stretch begins where this one ends, for the same reason."""
        own = self.camera, self.tenant, self.watch, self.end_ms, self.reason
        return own == (later.camera, later.tenant, later.watch, later.begin_ms, later.reason)


@dataclass(slots=True)
class Hour:
    """An hour: the incidents that began in it, and the milliseconds that were watched and not watched."""

    begin_ms: int
    incidents: int = 0
    watched_ms: int = 0
    unwatched_ms: int = 0


def shift_report(
    connection: Connection, principal: Principal, camera: str | None, begin_ms: int, end_ms: int
) -> ShiftReport:
    """A report about a time from the history: incidents, hours and what was not watched.

    Args:
        connection: A connection to the history.
        principal: The reader, who decides what it may hold.
        camera: An id or glob; None: all.
        begin_ms: Unix milliseconds.
        end_ms: Unix milliseconds, after `begin_ms`.
    """
    criteria = queries.IncidentFilter(camera=camera, since_ms=begin_ms, until_ms=end_ms)
    rows, next_page = queries.incidents(connection, principal, criteria, "", _INCIDENTS)
    hours, unwatched = shift(
        connection, principal, camera, begin_ms=begin_ms, end_ms=end_ms, now_ms=time.time() * 1000
    )
    unwatched.sort(key=lambda stretch: -stretch.time_ms)
    message = ShiftReport(
        incidents=[view_of_row(row, row.tenant) for row in rows],
        more_incidents=bool(next_page),
        hours=map(_hour, hours),
        unwatched=map(_unwatched, unwatched[:_UNWATCHED]),
    )
    message.since.FromMilliseconds(begin_ms)
    message.until.FromMilliseconds(end_ms)
    return message


def shift(
    connection: Connection,
    principal: Principal,
    camera: str | None,
    *,
    begin_ms: int,
    end_ms: int,
    now_ms: float,
) -> tuple[list[Hour], list[Unwatched]]:
    """The hours of a time, and the stretches that were not watched, by camera and watch.

    Stretches are found to the minute if few series are asked for, else to the hour.
    """
    asked = list(
        asked_times(connection, principal, camera, None, begin_ms=begin_ms, end_ms=end_ms, now_ms=now_ms)
    )
    fine = len(asked) * (end_ms - begin_ms) <= queries.BUCKETS_AT_MOST * MINUTE_MS
    size_ms = MINUTE_MS if fine else HOUR_MS
    series = [question.series for question in asked if question.series.key]
    sums = queries.sums(connection, series, begin_ms, end_ms, size_ms)
    first_ms = begin_ms // HOUR_MS * HOUR_MS
    hours = {at_ms: Hour(at_ms) for at_ms in range(first_ms, end_ms, HOUR_MS)}
    unwatched: list[Unwatched] = []
    for question in asked:
        buckets = sums.get(question.series.key, {})
        for at_ms, bucket in buckets.items():
            hour = hours.setdefault(at_ms // HOUR_MS * HOUR_MS, Hour(at_ms // HOUR_MS * HOUR_MS))
            times = dict(zip(OUTCOMES, bucket.times, strict=True))
            hour.watched_ms += sum(times[outcome] for outcome in OUTCOMES if outcome.watched)
        for stretch in _stretches(question, buckets, size_ms):
            hours.setdefault(at_ms := stretch.begin_ms // HOUR_MS * HOUR_MS, Hour(at_ms))
            hours[at_ms].unwatched_ms += stretch.time_ms
            before = unwatched[-1] if unwatched else None
            if before is not None and before.touches(stretch):
                before.end_ms, before.time_ms = stretch.end_ms, before.time_ms + stretch.time_ms
            else:
                unwatched.append(stretch)
    for at_ms in queries.incident_starts(connection, principal, camera, begin_ms, end_ms):
        hours[at_ms // HOUR_MS * HOUR_MS].incidents += 1
    return [hours[at_ms] for at_ms in sorted(hours)], unwatched


def _stretches(asked: AskedTime, buckets: Mapping[int, Bucket], size_ms: int) -> list[Unwatched]:
    """The stretches of a question about a camera that were not watched, bucket by bucket, each with its main
    reason."""
    out: list[Unwatched] = []
    series = asked.series
    names = series.camera, series.tenant, series.watch
    for at_ms in asked.buckets(size_ms):
        bucket = buckets.get(at_ms)
        stretches = list(asked.missing(at_ms, size_ms, bucket))
        if bucket is not None:
            begin_ms, end_ms = max(at_ms, asked.begin_ms), min(at_ms + size_ms, max(at_ms, asked.seen_ms))
            times = zip(OUTCOMES, bucket.times, strict=True)
            stretches += [
                Missing(begin_ms, end_ms, time_ms, outcome.value)
                for outcome, time_ms in times
                if not outcome.watched
            ]
        out.extend(_merged(names, stretches))
    return out


def _merged(names: tuple[str, str, str], stretches: Sequence[Missing]) -> Iterator[Unwatched]:
    """Stretches of one bucket that begin together are one, with its main reason."""
    for begin_ms in sorted({stretch.begin_ms for stretch in stretches}):
        same = [stretch for stretch in stretches if stretch.begin_ms == begin_ms]
        if (time_ms := sum(stretch.time_ms for stretch in same)) >= _LEAST_MS:
            reason = max(same, key=lambda stretch: stretch.time_ms).reason
            yield Unwatched(*names, begin_ms, max(stretch.end_ms for stretch in same), reason, time_ms)


def _hour(hour: Hour) -> ReportHour:
    message = ReportHour(
        incidents=hour.incidents, watched_s=hour.watched_ms / 1000, unwatched_s=hour.unwatched_ms / 1000
    )
    message.start.FromMilliseconds(hour.begin_ms)
    return message


def _unwatched(stretch: Unwatched) -> UnwatchedTime:
    message = UnwatchedTime(
        camera=stretch.camera,
        tenant=stretch.tenant,
        watch=stretch.watch,
        reason=stretch.reason,
        seconds=stretch.time_ms / 1000,
    )
    message.start.FromMilliseconds(stretch.begin_ms)
    message.end.FromMilliseconds(stretch.end_ms)
    return message
