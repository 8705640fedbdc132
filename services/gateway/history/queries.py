"""The API's queries on the history. They return only what the caller's scope allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy
from sqlalchemy import ColumnElement, Connection, Select

from lookout.services.gateway.history.buckets import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TIMES,
    Bucket,
    fine_buckets,
)
from lookout.services.gateway.history.tables import (
    ACTS,
    AUDIT,
    BUCKETS,
    CAMERAS,
    DOCUMENTS,
    INCIDENTS,
    LETTERS,
    QUESTIONS,
    SERIES,
    VERSIONS,
)
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.v1.access_pb2 import AuditEntry
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.gateway_pb2 import IncidentView, WatchAuthor
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_HEALTH, CAMERA_OFFLINE, WATCHES, from_json, headers, names_id

#: maximum number of buckets in one answer
BUCKETS_AT_MOST: Final = 20_000
#: the audit log's action for a film that was sent as a camera's footage
FILM_SENT: Final = "camera.film"
_FEW_CAMERAS: Final = 20


@dataclass(frozen=True, slots=True)
class CameraRow:
    """A camera that the caller may see."""

    key: int
    id: str
    tenant: str
    seen_ms: int
    outcome: str


def cameras_of(connection: Connection, principal: Principal, pattern: str | None = None) -> list[CameraRow]:
    """Return the cameras that a caller may see, by id.

    Args:
        connection: A connection to the history.
        principal: The caller.
        pattern: An id or glob; None: all.
    """
    query = sqlalchemy.select(CAMERAS).where(CAMERAS.c.seen_ms > 0).order_by(CAMERAS.c.id, CAMERAS.c.tenant)
    return [
        CameraRow(row.key, row.id, row.tenant, row.seen_ms, row.outcome)
        for row in connection.execute(query)
        if (pattern is None or names_id(pattern, row.id)) and principal.sees(row.id, row.tenant)
    ]


def tenants(connection: Connection) -> list[str]:
    """Return the tenants that have cameras."""
    return list(connection.scalars(sqlalchemy.select(CAMERAS.c.tenant).distinct().order_by(CAMERAS.c.tenant)))


def tenants_of(connection: Connection, camera: str) -> list[str]:
    """Return the tenants under which a camera id was seen."""
    return list(connection.scalars(sqlalchemy.select(CAMERAS.c.tenant).where(CAMERAS.c.id == camera)))


def footage_until(connection: Connection, camera: str) -> int:
    """Return the end of a camera's footage in Unix milliseconds; 0 if there is none.

    The end is that of the camera's windows or of the films sent for the camera, whichever is later. A film
    ends when it is sent, and decode may not have read it yet.
    """
    newest = sqlalchemy.select(sqlalchemy.func.max(CAMERAS.c.seen_ms)).where(CAMERAS.c.id == camera)
    films = sqlalchemy.select(AUDIT.c.time_ms, AUDIT.c.body).where(AUDIT.c.action == FILM_SENT)
    sent_ms = (
        row.time_ms
        for row in connection.execute(films.order_by(AUDIT.c.offset.desc()))
        if from_json(row.body, AuditEntry).camera == camera
    )
    return max(connection.scalar(newest) or 0, next(sent_ms, 0))


def wholly_seen(connection: Connection, principal: Principal, pattern: str | None) -> list[str]:
    """Return the ids of the cameras that the caller may see in every tenant. Landmarks need this, because
    they do not record a tenant.
    """
    cameras = sorted({row.id for row in cameras_of(connection, principal, pattern)})
    if principal.unlimited:
        return cameras
    return [name for name in cameras if all(map(principal.sees_tenant, tenants_of(connection, name)))]


def _in_scope(
    connection: Connection, principal: Principal, pattern: str | None, column: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    """Return conditions that limit a column of camera keys to the cameras that a caller may see."""
    if principal.unlimited and pattern is None:
        return []
    query = sqlalchemy.select(CAMERAS.c.key, CAMERAS.c.id, CAMERAS.c.tenant)
    keys = [
        row.key
        for row in connection.execute(query)
        if (pattern is None or names_id(pattern, row.id)) and principal.sees(row.id, row.tenant)
    ]
    # For many cameras, the index by time is faster, because an index by camera would need a sort. Adding 0
    # keeps the database from using the index by camera.
    return [column.in_(keys) if len(keys) <= _FEW_CAMERAS else (column + 0).in_(keys)]


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Selects incidents; a field with None does not restrict them."""

    camera: str | None = None
    watch: str | None = None
    states: Sequence[int] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    assignee: str | None = None
    words: str | None = None
    closed: bool | None = None


def _incident_rows() -> Select[Any]:
    return sqlalchemy.select(INCIDENTS, CAMERAS.c.tenant).join(CAMERAS, CAMERAS.c.key == INCIDENTS.c.camera)


def incidents(
    connection: Connection, principal: Principal, criteria: IncidentFilter, after: str, limit: int
) -> tuple[list[Any], str]:
    """Return a page of incidents, newest first, and the value of `after` for the next page (empty on the last
    page).

    Raises:
        ProblemError: `after` is not from an earlier page.
    """
    # The index alone gives the page's ids. Full rows with their alerts are read only for these ids.
    query = sqlalchemy.select(INCIDENTS.c.id, INCIDENTS.c.start_ms)
    query = query.where(*_in_scope(connection, principal, criteria.camera, INCIDENTS.c.camera))
    if criteria.watch is not None:
        query = query.where(INCIDENTS.c.watch == criteria.watch)
    if criteria.states:
        query = query.where(INCIDENTS.c.state.in_(criteria.states))
    if criteria.since_ms is not None:
        query = query.where(INCIDENTS.c.start_ms >= criteria.since_ms)
    if criteria.until_ms is not None:
        query = query.where(INCIDENTS.c.start_ms < criteria.until_ms)
    if criteria.assignee is not None:
        query = query.where(INCIDENTS.c.assignee == criteria.assignee)
    if criteria.closed is not None:
        query = query.where(INCIDENTS.c.closed == criteria.closed)
    if criteria.words is not None:
        query = query.where(INCIDENTS.c.question.in_(_questions(connection, criteria.words)))
    if after:
        start_ms, identity = _place(after)
        query = query.where(
            sqlalchemy.or_(
                INCIDENTS.c.start_ms < start_ms,
                sqlalchemy.and_(INCIDENTS.c.start_ms == start_ms, INCIDENTS.c.id < identity),
            )
        )
    order = INCIDENTS.c.start_ms.desc(), INCIDENTS.c.id.desc()
    places = connection.execute(query.order_by(*order).limit(limit + 1)).all()
    names = [place.id for place in places[:limit]]
    rows = connection.execute(_incident_rows().where(INCIDENTS.c.id.in_(names)).order_by(*order)).all()
    return list(rows), f"{places[limit - 1].start_ms}.{names[-1]}" if len(places) > limit else ""


def _place(after: str) -> tuple[int, str]:
    start, _, identity = after.partition(".")
    if not (start.isdigit() and len(start) <= 15 and identity):
        raise ProblemError(400, "after: give the value `next` from an earlier page")
    return int(start), identity


def _questions(connection: Connection, words: str) -> list[int]:
    """Return the keys of questions that contain a word starting with each searched word, ignoring case."""
    criteria = words.casefold().split()
    texts = connection.execute(sqlalchemy.select(QUESTIONS))
    return [
        row.key
        for row in texts
        if all(any(word.startswith(begin) for word in _words(row.text)) for begin in criteria)
    ]


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.casefold()).split()


def incident(connection: Connection, principal: Principal, identity: str) -> tuple[Any, list[bytes]] | None:
    """Return an incident's row and the actions on the incident; None if it does not exist or the caller may
    not see it.
    """
    row = connection.execute(
        sqlalchemy.select(INCIDENTS, CAMERAS.c.tenant, CAMERAS.c.id.label("camera_id"))
        .join(CAMERAS, CAMERAS.c.key == INCIDENTS.c.camera)
        .where(INCIDENTS.c.id == identity)
    ).one_or_none()
    if row is None or not principal.sees(row.camera_id, row.tenant):
        return None
    acts = connection.scalars(
        sqlalchemy.select(ACTS.c.body).where(ACTS.c.incident == identity).order_by(ACTS.c.offset)
    )
    return row, list(acts)


def add_acts(connection: Connection, incidents: Sequence[IncidentView]) -> None:
    """Add to each incident the actions of people on it, oldest first."""
    views = {view.id: view for view in incidents}
    query = sqlalchemy.select(ACTS.c.incident, ACTS.c.body).where(ACTS.c.incident.in_(list(views)))
    for row in connection.execute(query.order_by(ACTS.c.offset)):
        views[row.incident].actions.append(from_json(row.body, IncidentAction))


def newest_alert(connection: Connection, identity: str) -> Alert | None:
    """Return an incident's newest alert; None if the incident is unknown."""
    body = connection.scalar(sqlalchemy.select(INCIDENTS.c.alert).where(INCIDENTS.c.id == identity))
    return None if body is None else from_json(body, Alert)


def open_incidents(connection: Connection) -> Mapping[int, int]:
    """Return the number of open incidents, by the camera's key."""
    rows = connection.execute(
        sqlalchemy.select(INCIDENTS.c.camera, sqlalchemy.func.count())
        .where(sqlalchemy.not_(INCIDENTS.c.closed))
        .group_by(INCIDENTS.c.camera)
    )
    return {row[0]: row[1] for row in rows}


def camera_faults(connection: Connection) -> Mapping[int, str]:
    """Return cameras' faults, by the camera's key: the cause in a camera's open incident of the watch
    `camera-health`.
    """
    rows = connection.execute(
        sqlalchemy.select(INCIDENTS.c.camera, INCIDENTS.c.alert)
        .where(INCIDENTS.c.watch == CAMERA_HEALTH, sqlalchemy.not_(INCIDENTS.c.closed))
        .order_by(INCIDENTS.c.start_ms)
    )
    return {row.camera: from_json(row.alert, Alert).cause for row in rows}


def documents(connection: Connection, topic: str) -> list[Any]:
    """Return the rows of a compacted topic, by key."""
    query = sqlalchemy.select(DOCUMENTS).where(DOCUMENTS.c.topic == topic).order_by(DOCUMENTS.c.key)
    return list(connection.execute(query))


def document(connection: Connection, topic: str, key: str) -> Any:
    """Return the row of a key in a compacted topic; None if the key has no row."""
    query = sqlalchemy.select(DOCUMENTS).where(DOCUMENTS.c.topic == topic, DOCUMENTS.c.key == key)
    return connection.execute(query).one_or_none()


def owned(connection: Connection, topic: str) -> set[str]:
    """Return the keys of a topic's records that belong to Kubernetes resources."""
    query = sqlalchemy.select(DOCUMENTS.c.key).where(
        DOCUMENTS.c.topic == topic, DOCUMENTS.c.owner == headers.KUBERNETES
    )
    return set(connection.scalars(query))


def watches(connection: Connection, principal: Principal) -> list[Watch]:
    """Return the watches that a caller may see, by id."""
    rows = [from_json(row.body, Watch) for row in documents(connection, WATCHES.name)]
    if principal.unlimited:
        return rows
    cameras = [(camera.id, camera.tenant) for camera in cameras_of(connection, principal)]
    return [watch for watch in rows if principal.sees_watch(watch, cameras)]


def asking(connection: Connection) -> list[Watch]:
    """Return the watches that currently ask a model, whoever may see them."""
    watches = (from_json(row.body, Watch) for row in documents(connection, WATCHES.name))
    return [watch for watch in watches if not watch.disabled and watch.id != CAMERA_OFFLINE]


def versions(connection: Connection, watch: str) -> list[Watch]:
    """Return a watch's versions, oldest first."""
    query = sqlalchemy.select(VERSIONS.c.body).where(*_written(watch)).order_by(VERSIONS.c.offset)
    return [from_json(body, Watch) for body in connection.scalars(query)]


def authors(connection: Connection, watch: str) -> Iterator[WatchAuthor]:
    """Yield who wrote each version of a watch, oldest first."""
    columns = sqlalchemy.select(VERSIONS.c.actor, VERSIONS.c.written_ms)
    for row in connection.execute(columns.where(*_written(watch)).order_by(VERSIONS.c.offset)):
        author = WatchAuthor(actor=row.actor)
        if row.written_ms > 0:
            author.written.FromMilliseconds(row.written_ms)
        yield author


def _written(watch: str) -> tuple[ColumnElement[bool], ...]:
    """Return conditions that select a watch's records, without its removals."""
    return VERSIONS.c.watch == watch, VERSIONS.c.version >= 0


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A camera and a watch."""

    key: int
    camera: str
    tenant: str
    watch: str


def series_of(
    connection: Connection, principal: Principal, camera: str | None, watch: str | None
) -> list[SeriesRow]:
    """Return the series that a caller may see, by camera and watch."""
    query = (
        sqlalchemy.select(SERIES.c.key, CAMERAS.c.id, CAMERAS.c.tenant, SERIES.c.watch)
        .join(CAMERAS, CAMERAS.c.key == SERIES.c.camera)
        .order_by(CAMERAS.c.id, CAMERAS.c.tenant, SERIES.c.watch)
    )
    return [
        SeriesRow(row.key, row.id, row.tenant, row.watch)
        for row in connection.execute(query)
        if (camera is None or names_id(camera, row.id))
        and (watch is None or row.watch == watch)
        and principal.sees(row.id, row.tenant)
    ]


def sums(
    connection: Connection, series: Iterable[SeriesRow], since_ms: int, until_ms: int, size_ms: int
) -> dict[int, dict[int, Bucket]]:
    """Return series' sums in buckets of one size, without buckets that have no verdict.

    Args:
        connection: A connection to the history.
        series: The series.
        since_ms: Begin, Unix milliseconds.
        until_ms: End, Unix milliseconds.
        size_ms: Length of a bucket in milliseconds; must divide a minute, or be a multiple of minutes, hours
            or days.

    Returns:
        The sums, by the series' key and the bucket's begin.
    """
    level = next(
        level for level in (DAY_MS, HOUR_MS, MINUTE_MS) if size_ms % level == 0 or level == MINUTE_MS
    )
    fine = size_ms < MINUTE_MS
    columns = [BUCKETS.c[name] for name in _SUMMED] + ([BUCKETS.c.detail] if fine else [])
    result: dict[int, dict[int, Bucket]] = defaultdict(dict)
    for entry in series:
        query = (
            sqlalchemy.select(BUCKETS.c.start_ms, *columns)
            .where(
                BUCKETS.c.level == level,
                BUCKETS.c.series == entry.key,
                BUCKETS.c.start_ms >= since_ms // level * level,
                BUCKETS.c.start_ms < until_ms,
            )
            .order_by(BUCKETS.c.start_ms)
        )
        buckets = result[entry.key]
        for row in connection.execute(query):
            if fine:
                for start, bucket in fine_buckets(row.start_ms, row.detail or b"", size_ms).items():
                    if since_ms <= start + size_ms - 1 and start < until_ms:
                        buckets[start] = bucket
            else:
                _sum(buckets.setdefault(row.start_ms // size_ms * size_ms, Bucket()), row)
    return result


def minutes_seen(
    connection: Connection, series: SeriesRow, since_ms: int, until_ms: int
) -> tuple[int, int] | None:
    """Return the begin of the first and the end of the last minute with verdicts in a range; None if there
    are none.
    """
    query = (
        sqlalchemy.select(BUCKETS.c.start_ms)
        .where(
            BUCKETS.c.level == MINUTE_MS,
            BUCKETS.c.series == series.key,
            BUCKETS.c.start_ms > since_ms - MINUTE_MS,
            BUCKETS.c.start_ms < until_ms,
        )
        .limit(1)
    )
    first = connection.scalar(query.order_by(BUCKETS.c.start_ms))
    last = connection.scalar(query.order_by(BUCKETS.c.start_ms.desc()))
    return None if first is None or last is None else (first, last + MINUTE_MS)


_SUMMED: Final = ("verdicts", "answers", "p_sum", "p_max", *TIMES, "shared", "own", "device_us")


def _sum(bucket: Bucket, row: Any) -> None:
    bucket.verdicts += row.verdicts
    bucket.answers += row.answers
    bucket.p_sum += row.p_sum
    bucket.p_max = max(bucket.p_max, row.p_max)
    for place, name in enumerate(TIMES):
        bucket.times[place] += getattr(row, name)
    bucket.shared += row.shared
    bucket.own += row.own
    bucket.device_us += row.device_us


@dataclass(frozen=True, slots=True)
class CostOf:
    """The cost of a question about a camera, in FLOPs and device seconds."""

    camera: str
    tenant: str
    watch: str
    verdicts: int
    answers: int
    flops: float
    device_s: float


def costs(
    connection: Connection, principal: Principal, camera: str | None, since_ms: int, until_ms: int
) -> list[CostOf]:
    """Return the cost of the questions that a caller may see, by camera and watch. The range is rounded to
    hours. A window's shared cost is divided evenly among its questions.
    """
    series = series_of(connection, principal, camera, None)
    spent = sums(connection, series, since_ms, until_ms, HOUR_MS)
    by_camera = defaultdict(list)
    for member in series:
        if spent.get(member.key):
            by_camera[member.camera, member.tenant].append(member)
    rows = []
    for members in by_camera.values():
        totals = {member.key: _total(spent[member.key].values()) for member in members}
        shared = max(total.shared for total in totals.values()) / len(members)
        for member in members:
            total = totals[member.key]
            rows.append(
                CostOf(
                    member.camera,
                    member.tenant,
                    member.watch,
                    total.verdicts,
                    total.answers,
                    total.own + shared,
                    total.device_us / 1e6,
                )
            )
    return rows


def _total(buckets: Iterable[Bucket]) -> Bucket:
    total = Bucket()
    for bucket in buckets:
        total.verdicts += bucket.verdicts
        total.answers += bucket.answers
        total.shared += bucket.shared
        total.own += bucket.own
        total.device_us += bucket.device_us
    return total


def incidents_by_tenant(
    connection: Connection, principal: Principal, since_ms: int, until_ms: int
) -> dict[str, int]:
    """Return the number of incidents that began in a range and that a caller may see, by tenant."""
    query = (
        sqlalchemy.select(CAMERAS.c.id, CAMERAS.c.tenant, sqlalchemy.func.count())
        .select_from(INCIDENTS)
        .join(CAMERAS, CAMERAS.c.key == INCIDENTS.c.camera)
        .where(INCIDENTS.c.start_ms >= since_ms, INCIDENTS.c.start_ms < until_ms)
        .group_by(CAMERAS.c.id, CAMERAS.c.tenant)
    )
    counts: dict[str, int] = defaultdict(int)
    for camera, tenant, count in connection.execute(query):
        if principal.sees(camera, tenant):
            counts[tenant] += count
    return dict(counts)


def incident_starts(
    connection: Connection, principal: Principal, camera: str | None, since_ms: int, until_ms: int
) -> list[int]:
    """Return the begins, in Unix milliseconds, of the incidents that began in a range and that a caller may
    see.
    """
    query = sqlalchemy.select(INCIDENTS.c.start_ms).where(
        *_in_scope(connection, principal, camera, INCIDENTS.c.camera),
        INCIDENTS.c.start_ms >= since_ms,
        INCIDENTS.c.start_ms < until_ms,
    )
    return list(connection.scalars(query))


def verdict_places(
    connection: Connection, series: Iterable[SeriesRow], since_ms: int, until_ms: int
) -> dict[int, tuple[int, int]]:
    """Return the first and last offset in verdicts.v1 of the verdicts in a range, by partition."""
    places: dict[int, tuple[int, int]] = {}
    for entry in series:
        query = sqlalchemy.select(BUCKETS.c.partition, BUCKETS.c.first, BUCKETS.c.last).where(
            BUCKETS.c.level == MINUTE_MS,
            BUCKETS.c.series == entry.key,
            BUCKETS.c.start_ms >= since_ms // MINUTE_MS * MINUTE_MS,
            BUCKETS.c.start_ms < until_ms,
            BUCKETS.c.first >= 0,
        )
        for row in connection.execute(query):
            first, last = places.get(row.partition, (row.first, row.last))
            places[row.partition] = min(first, row.first), max(last, row.last)
    return places


def verdict_near(connection: Connection, camera: str, at_ms: int) -> tuple[int, int] | None:
    """Return the partition and offset in verdicts.v1 of a camera's verdict near a time; None if there is
    none.

    Args:
        connection: A connection to the history.
        camera: The camera's id.
        at_ms: The time, Unix milliseconds. Only verdicts at most an hour away are considered.
    """
    distance = sqlalchemy.func.abs(BUCKETS.c.start_ms - at_ms)
    query = (
        sqlalchemy.select(BUCKETS.c.partition, BUCKETS.c.first)
        .join(SERIES, SERIES.c.key == BUCKETS.c.series)
        .join(CAMERAS, CAMERAS.c.key == SERIES.c.camera)
        .where(
            CAMERAS.c.id == camera,
            BUCKETS.c.level == MINUTE_MS,
            BUCKETS.c.start_ms.between(at_ms - HOUR_MS, at_ms + HOUR_MS),
            BUCKETS.c.first >= 0,
        )
        .order_by(distance)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.partition, row.first)


def letter(
    connection: Connection, principal: Principal, topic: str, partition: int, offset: int
) -> Any | None:
    """Return a dead letter's row; None if it does not exist or the caller may not see it."""
    query = sqlalchemy.select(LETTERS).where(
        LETTERS.c.topic == topic, LETTERS.c.partition == partition, LETTERS.c.offset == offset
    )
    row = connection.execute(query).one_or_none()
    return row if row is not None and principal.sees(row.key, row.tenant) else None


def letters(connection: Connection, principal: Principal, after: str, limit: int) -> tuple[list[bytes], str]:
    """Return a page of dead letters, newest first, and the value of `after` for the next page (empty on the
    last page).
    """
    query = sqlalchemy.select(LETTERS).order_by(
        LETTERS.c.time_ms.desc(), LETTERS.c.topic, LETTERS.c.partition, LETTERS.c.offset.desc()
    )
    if after:
        if not after.isdigit() or len(after) > 15:
            raise ProblemError(400, "after: give the value `next` from an earlier page")
        query = query.where(LETTERS.c.time_ms < int(after))
    page: list[Any] = []
    for row in connection.execute(query):
        if not principal.sees(row.key, row.tenant):
            continue
        # Dead letters of the same millisecond are never split between two pages.
        if len(page) >= limit and row.time_ms != page[-1].time_ms:
            return [entry.body for entry in page], str(page[-1].time_ms)
        page.append(row)
    return [entry.body for entry in page], ""
