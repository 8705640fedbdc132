"""When cameras were to be pulled, and what watches asked when: from all their records, removals too."""

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
    """What held from when until when, in Unix milliseconds."""

    begin_ms: int
    end_ms: int
    value: Value


def watch_spans(connection: Connection) -> dict[str, list[Span[Watch]]]:
    """About which cameras each watch asked when, by its id; the watches have nothing else."""
    rows = connection.execute(sqlalchemy.select(VERSIONS).order_by(VERSIONS.c.watch, VERSIONS.c.offset))
    audited = _audited(connection, "watch")
    result = {}
    for name, records in groupby(rows, attrgetter("watch")):
        changes = [
            (row.active_ms or row.written_ms, None if row.version < 0 else _asks(row.body)) for row in records
        ]
        # The topic keeps the newest version: of those before, only the audit log knows that they were.
        first_ms, first = changes[0]
        early = [
            (at_ms, first if written else None) for at_ms, written, _ in audited[name] if at_ms < first_ms
        ]
        result[name] = list(_spans([*early, *changes]))
    return result


def _asks(body: bytes) -> Watch:
    """What a version of a watch says of whom it asks about, so that versions that differ in other things are
    one span."""
    watch = from_json(body, Watch)
    return Watch(tenant=watch.tenant, cameras=watch.cameras, disabled=watch.disabled)


def camera_spans(connection: Connection) -> dict[tuple[str, str], list[Span[str]]]:
    """When each camera was to be pulled, by its id and tenant."""
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
            early.pop()  # it is gone, and nobody knows since when
        changes[name][:0] = early
    result: dict[tuple[str, str], list[Span[str]]] = defaultdict(list)
    for name, written in changes.items():
        for span in _spans(written):
            result[name, span.value].append(span)
    return result


def _spans(changes: Iterable[tuple[int, Value | None]]) -> Iterator[Span[Value]]:
    """What held when; a change holds from its time on, whatever earlier ones had planned from then on."""
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
    """Who was written (else removed), when, and its tenant, as far as it was done over the API."""
    write = f"{kind}.write"
    query = sqlalchemy.select(AUDIT).where(AUDIT.c.action.in_((write, f"{kind}.remove")))
    result: dict[str, list[tuple[int, bool, str]]] = defaultdict(list)
    for row in connection.execute(query.order_by(AUDIT.c.offset)):
        entry = from_json(row.body, AuditEntry)
        result[entry.subject].append((row.time_ms, row.action == write, tenant_of(entry.tenant)))
    return result
