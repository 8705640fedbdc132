"""The content of a report about a time range: incidents per hour, cameras, and stretches without answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection

from lookout.services.gateway.history import queries
from lookout.services.gateway.history.asked import UNSET, AskedTime, Missing, asked_times
from lookout.services.gateway.history.buckets import HOUR_MS, MINUTE_MS, Bucket
from lookout.services.gateway.history.verdict_rows import OUTCOMES
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.principal import Principal
from lookout.v1.gateway_pb2 import ReportCamera, ReportHour, ShiftReport, UnwatchedTime

#: maximum number of incidents, and of stretches, that a report lists
_INCIDENTS: Final = 200
STRETCHES: Final = 1000
#: milliseconds; shorter stretches are omitted, because they come from rounding windows to minutes
_LEAST_MS: Final = 1000
#: milliseconds; a range that ended less than this ago counts as lasting until now, because queries take time
_NOW_MS: Final = 10_000


@dataclass(slots=True)
class Unwatched:
    """A stretch of time in which a question about a camera had no answer for `time_ms` milliseconds.

    `began` says what was added when the stretch began, and `ended` what was removed when it ended (for
    example `camera-added`); empty if nothing was added or removed. `ongoing`: the stretch lasts until now.
    """

    camera: str
    tenant: str
    watch: str
    begin_ms: int
    end_ms: int
    reason: str
    time_ms: int
    began: str = ""
    ended: str = ""
    ongoing: bool = False

    @property
    def watched_ms(self) -> int:
        """Milliseconds within the stretch that were watched."""
        return self.end_ms - self.begin_ms - self.time_ms

    def touches(self, later: Unwatched) -> bool:
        """Return whether a later stretch has the same question and reason and begins where this stretch
        ends.
        """
        own = self.camera, self.tenant, self.watch, self.end_ms, self.reason
        return own == (later.camera, later.tenant, later.watch, later.begin_ms, later.reason)


@dataclass(slots=True)
class Hour:
    """An hour: the number of incidents that began in it, and the milliseconds watched and not watched."""

    begin_ms: int
    incidents: int = 0
    watched_ms: int = 0
    unwatched_ms: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """What was watched in a time range.

    Attributes:
        hours: The hours, in order.
        cameras: By camera and tenant: milliseconds watched, and milliseconds not watched.
        unwatched: Stretches without answers, by camera and watch.
        unset: Stretches before a camera or question was set up, which count neither as watched nor as
            unwatched.
    """

    hours: list[Hour]
    cameras: dict[tuple[str, str], tuple[int, int]]
    unwatched: list[Unwatched]
    unset: list[Unwatched]


def shift_report(
    connection: Connection,
    principal: Principal,
    camera: str | None,
    begin_ms: int,
    end_ms: int,
    *,
    stretches: int = STRETCHES,
) -> ShiftReport:
    """Make a report about a time range from the history: incidents, hours, cameras and unwatched
    stretches.

    Args:
        connection: A connection to the history.
        principal: The reader; the report contains only what the reader may see.
        camera: An id or glob; None: all.
        begin_ms: Begin of the range, Unix milliseconds.
        end_ms: End of the range, after `begin_ms`.
        stretches: Maximum number of stretches without answers to list.
    """
    criteria = queries.IncidentFilter(camera=camera, since_ms=begin_ms, until_ms=end_ms)
    rows, next_page = queries.incidents(connection, principal, criteria, "", _INCIDENTS)
    content = shift(
        connection, principal, camera, begin_ms=begin_ms, end_ms=end_ms, now_ms=time.time() * 1000
    )
    unwatched = sorted(content.unwatched, key=lambda stretch: -stretch.time_ms)
    message = ShiftReport(
        incidents=[view_of_row(row, row.tenant) for row in rows],
        more_incidents=bool(next_page),
        hours=map(_hour, content.hours),
        unwatched=map(_unwatched, unwatched[:stretches]),
        more_unwatched=max(len(unwatched), len(content.unset)) > stretches,
        unset=map(_unwatched, content.unset[:stretches]),
        cameras=[
            ReportCamera(camera=name, tenant=tenant, watched_s=watched / 1000, unwatched_s=lost / 1000)
            for (name, tenant), (watched, lost) in sorted(content.cameras.items())
        ],
    )
    queries.add_acts(connection, message.incidents)
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
) -> Shift:
    """Return a time range's hours, its cameras, and the stretches that were not watched. If there are few
    series, stretches are exact to the minute; otherwise to the hour.
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
    cameras: dict[tuple[str, str], tuple[int, int]] = {}
    unwatched: list[Unwatched] = []
    for question in asked:
        buckets = sums.get(question.series.key, {})
        watched_ms = 0
        for at_ms, bucket in buckets.items():
            hour = hours.setdefault(at_ms // HOUR_MS * HOUR_MS, Hour(at_ms // HOUR_MS * HOUR_MS))
            times = dict(zip(OUTCOMES, bucket.times, strict=True))
            seen_ms = sum(times[outcome] for outcome in OUTCOMES if outcome.watched)
            hour.watched_ms, watched_ms = hour.watched_ms + seen_ms, watched_ms + seen_ms
        pieces = _stretches(question, buckets, size_ms)
        for piece in pieces:
            hours.setdefault(at_ms := piece.begin_ms // HOUR_MS * HOUR_MS, Hour(at_ms))
            hours[at_ms].unwatched_ms += piece.time_ms
        unwatched.extend(_bounded(piece, question, now_ms) for piece in _joined(pieces))
        name = question.series.camera, question.series.tenant
        before = cameras.get(name, (0, 0))
        cameras[name] = before[0] + watched_ms, before[1] + sum(piece.time_ms for piece in pieces)
    for at_ms in queries.incident_starts(connection, principal, camera, begin_ms, end_ms):
        hours[at_ms // HOUR_MS * HOUR_MS].incidents += 1
    unset = list(_unset(asked, begin_ms))
    return Shift([hours[at_ms] for at_ms in sorted(hours)], cameras, unwatched, unset)


def _joined(pieces: Sequence[Unwatched]) -> Iterator[Unwatched]:
    """Join a question's adjacent pieces into stretches, each as long as its missing time.

    If at most a minute of the first piece was watched, that time is assumed to come before the stretch. If at
    most a minute of the last piece was watched, that time is assumed to come after it.
    """
    groups: list[list[Unwatched]] = []
    for piece in pieces:
        if groups and groups[-1][-1].touches(piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    for group in groups:
        first, last = group[0], group[-1]
        begin_ms, end_ms = first.begin_ms, last.end_ms
        if end_ms - begin_ms > MINUTE_MS and first.watched_ms <= MINUTE_MS:
            begin_ms = first.end_ms - first.time_ms
        if len(group) > 1 and last.watched_ms <= MINUTE_MS:
            end_ms = last.begin_ms + last.time_ms
        time_ms = sum(piece.time_ms for piece in group)
        yield replace(first, begin_ms=begin_ms, end_ms=end_ms, time_ms=time_ms)


def _bounded(stretch: Unwatched, asked: AskedTime, now_ms: float) -> Unwatched:
    """Return the stretch with `began`, `ended` and `ongoing` set, which say whether it begins when a camera
    or watch is added, ends when one is removed, or lasts until now.
    """

    def change(at_ms: int, what: str) -> str:
        near = (name for time_ms, name in asked.changes if abs(time_ms - at_ms) < _LEAST_MS)
        return next((name for name in near if name.endswith(what)), "")

    ended = change(stretch.end_ms, "-removed")
    ongoing = not ended and stretch.end_ms > now_ms - _NOW_MS
    return replace(stretch, began=change(stretch.begin_ms, "-added"), ended=ended, ongoing=ongoing)


def _unset(asked: Iterable[AskedTime], begin_ms: int) -> Iterator[Unwatched]:
    """Yield the stretches before a camera was set up, and the stretches before its later questions were
    added.
    """
    firsts: dict[tuple[str, str], int] = {}
    for question in asked:
        name = question.series.camera, question.series.tenant
        firsts[name] = min(firsts.get(name, question.begin_ms), question.begin_ms)
    for (camera, tenant), first_ms in firsts.items():
        if first_ms > begin_ms:
            yield Unwatched(camera, tenant, "", begin_ms, first_ms, UNSET, first_ms - begin_ms)
    for question in asked:
        series = question.series
        first_ms = firsts[series.camera, series.tenant]
        # Windows of different questions rarely end in the same minute.
        if question.begin_ms - first_ms > 2 * MINUTE_MS:
            length_ms = question.begin_ms - first_ms
            names = series.camera, series.tenant, series.watch
            yield Unwatched(*names, first_ms, question.begin_ms, UNSET, length_ms)


def _stretches(asked: AskedTime, buckets: Mapping[int, Bucket], size_ms: int) -> list[Unwatched]:
    """Return the stretches in which a question about a camera was not watched, each within a bucket and with
    its main reason.
    """
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
    """Merge a bucket's stretches that begin at the same time; the longest stretch gives the reason."""
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
        began=stretch.began,
        ended=stretch.ended,
        ongoing=stretch.ongoing,
    )
    # Rounded to whole seconds, so that a table's lengths equal end minus begin, and a stretch ends exactly
    # where the next one begins.
    begin_s, end_s = (stretch.begin_ms + 500) // 1000, (stretch.end_ms + 500) // 1000
    message.start.FromSeconds(begin_s)
    message.end.FromSeconds(end_s)
    message.seconds = stretch.time_ms / 1000 if stretch.watched_ms else end_s - begin_s
    return message
