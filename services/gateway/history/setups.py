"""Timelines of cameras and watches: when each was set up, changed and removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

import sqlalchemy
from sqlalchemy import Connection

from lookout.services.gateway.history.tables import AUDIT, SOURCES, VERSIONS
from lookout.v1.access_pb2 import AuditEntry
from lookout.v1.watches_pb2 import Watch
from lookout.wire import from_json, tenant_of

FOREVER: Final = 1 << 62
Value = TypeVar("Value")


class Span(NamedTuple, Generic[Value]):
    """A value, and when it was in force, in Unix milliseconds."""

    begin_ms: int
    end_ms: int
    value: Value


def watch_spans(connection: Connection) -> dict[str, list[Span[Watch]]]:
    """Return each watch's timeline, by id. Its values say only which cameras the watch covers (see
    `_asks`).
    """
    rows = connection.execute(sqlalchemy.select(VERSIONS).order_by(VERSIONS.c.watch, VERSIONS.c.offset))
    audited = _audited(connection, "watch")
    result = {}
    for name, records in groupby(rows, attrgetter("watch")):
        changes = [
            (row.active_ms or row.written_ms, None if row.version < 0 else _asks(row.body)) for row in records
        ]
        # The compacted topic keeps only the newest version, so only the audit log has earlier changes.
        first_ms, first = changes[0]
        early = [
            (at_ms, first if written else None) for at_ms, written, _ in audited[name] if at_ms < first_ms
        ]
        result[name] = list(_spans([*early, *changes]))
    return result


def _asks(body: bytes) -> Watch:
    """Return a version of a watch reduced to the cameras that it covers and whether it is paused. Versions
    that differ only in other fields then form one span.
    """
    watch = from_json(body, Watch)
    return Watch(tenant=watch.tenant, cameras=watch.cameras, disabled=watch.disabled)


def camera_spans(connection: Connection) -> dict[tuple[str, str], list[Span[str]]]:
    """Return when agents were supposed to pull each camera, by id and tenant."""
    rows = connection.execute(sqlalchemy.select(SOURCES).order_by(SOURCES.c.camera, SOURCES.c.offset))
    changes: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
    for row in rows:
        changes[row.camera].append((row.written_ms, row.tenant if row.pulled else None))
    for name, entries in _audited(connection, "camera").items():
        first_ms = changes[name][0][0] if changes[name] else FOREVER
        early = [
            (at_ms, tenant if written else None) for at_ms, written, tenant in entries if at_ms < first_ms
        ]
        if not changes[name] and early[-1][1] is not None:
            early.pop()  # the camera was removed at an unknown time
        changes[name][:0] = early
    result: dict[tuple[str, str], list[Span[str]]] = defaultdict(list)
    for name, written in changes.items():
        for span in _spans(written):
            result[name, span.value].append(span)
    return result


def _spans(changes: Iterable[tuple[int, Value | None]]) -> Iterator[Span[Value]]:
    """Turn changes into spans. A change applies from its time on, and replaces earlier records that have a
    later time.
    """
    changed: list[tuple[int, Value | None]] = []
    for begin_ms, value in changes:
        while changed and changed[-1][0] >= begin_ms:
            changed.pop()
        if not changed or changed[-1][1] != value:
            changed.append((begin_ms, value))
    for (begin_ms, value), (end_ms, _) in pairwise([*changed, (FOREVER, None)]):
        if value is not None:
            yield Span(begin_ms, end_ms, value)


def _audited(connection: Connection, kind: str) -> dict[str, list[tuple[int, bool, str]]]:
    """Return writes and removals over the API, by id, as tuples of Unix milliseconds, whether it was a write,
    and tenant.
    """
    write = f"{kind}.write"
    query = sqlalchemy.select(AUDIT).where(AUDIT.c.action.in_((write, f"{kind}.remove")))
    result: dict[str, list[tuple[int, bool, str]]] = defaultdict(list)
    for row in connection.execute(query.order_by(AUDIT.c.offset)):
        entry = from_json(row.body, AuditEntry)
        result[entry.subject].append((row.time_ms, row.action == write, tenant_of(entry.tenant)))
    return result
