"""The history's cameras and series (sums for a camera and a watch), kept in memory across transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy
from sqlalchemy import Connection

from lookout.services.gateway.history.buckets import (
    LEVELS,
    MINUTE_MS,
    Bucket,
    add,
    add_detail,
    bucket_of,
    covered_until,
    pieces,
)
from lookout.services.gateway.history.database import Database, new_key
from lookout.services.gateway.history.tables import BUCKETS, CAMERAS, SERIES
from lookout.services.gateway.history.verdict_rows import OUTCOMES, VerdictRow


@dataclass(slots=True)
class _Camera:
    key: int
    seen_ms: int = 0
    outcome: str = ""
    decided_ms: int = 0
    changed: bool = False


@dataclass(slots=True)
class _Series:
    key: int
    newest_ms: int
    last_ms: int
    buckets: dict[tuple[int, int], Bucket] = field(default_factory=dict)  # by level and begin
    changed: set[tuple[int, int]] = field(default_factory=set)


class SeriesBook:
    """Holds cameras and series (a camera and a watch) in memory while records are counted. Call `forget`
    after a failed transaction.

    Args:
        database: The history's database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cameras: dict[tuple[str, str], _Camera] = {}
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._touched: list[_Series] = []

    def forget(self) -> None:
        """Drop everything in memory, so that it is reread from the database."""
        self._cameras.clear()
        self._series.clear()
        self._touched.clear()

    def camera(self, connection: Connection, tenant: str, identity: str) -> int:
        """Return a camera's key; a new camera gets a row."""
        return self._camera(connection, tenant, identity).key

    def seen(self, connection: Connection, tenant: str, identity: str, seen_ms: int) -> None:
        """Record the time until which a camera was heard."""
        camera = self._camera(connection, tenant, identity)
        if seen_ms > camera.seen_ms:
            camera.seen_ms, camera.changed = seen_ms, True

    def _decided(self, connection: Connection, row: VerdictRow) -> None:
        """Record the outcome of a camera's window."""
        self.seen(connection, row.tenant, row.camera, row.end_ms)
        camera = self._camera(connection, row.tenant, row.camera)
        if row.end_ms >= camera.decided_ms:
            camera.decided_ms, camera.outcome = row.end_ms, OUTCOMES[row.outcome].value
            camera.changed = True

    def count(self, connection: Connection, row: VerdictRow, at: tuple[int, int]) -> None:
        """Count a verdict; `at` is the partition and offset of the verdict's record."""
        name = (row.tenant, row.camera, row.watch)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = self._open(connection, *name)
        if not series.changed:
            self._touched.append(series)
        for minute, start, end, ends in pieces(row, series.newest_ms):
            for level in LEVELS:
                key = level, minute // level * level
                bucket = series.buckets.get(key)
                if bucket is None:
                    bucket = series.buckets[key] = self._bucket(connection, series, *key)
                add(bucket, row, end - start, at, ends=ends)
                if level == MINUTE_MS:
                    add_detail(bucket, row, minute, start, end, ends=ends)
                series.changed.add(key)
        series.newest_ms = covered_until(row, series.newest_ms)
        series.last_ms = max(series.last_ms, row.end_ms)
        self._decided(connection, row)

    def write(self, connection: Connection) -> None:
        """Write the changed rows to the database."""
        rows: list[dict[str, Any]] = []
        newest: list[dict[str, int]] = []
        for series in self._touched:
            newest.append({"b_key": series.key, "b_newest": series.newest_ms, "b_last": series.last_ms})
            for level, start in series.changed:
                bucket = series.buckets[level, start]
                rows.append({"level": level, "series": series.key, "start_ms": start, **bucket.row()})
            series.changed.clear()
            _drop_old(series)
        self._touched.clear()
        if rows:
            connection.execute(self._database.upsert(BUCKETS), rows)
            connection.execute(
                SERIES.update()
                .where(SERIES.c.key == sqlalchemy.bindparam("b_key"))
                .values(newest_ms=sqlalchemy.bindparam("b_newest"), last_ms=sqlalchemy.bindparam("b_last")),
                newest,
            )
        cameras = [camera for camera in self._cameras.values() if camera.changed]
        if cameras:
            connection.execute(
                CAMERAS.update()
                .where(CAMERAS.c.key == sqlalchemy.bindparam("b_key"))
                .values(
                    seen_ms=sqlalchemy.bindparam("b_seen"),
                    outcome=sqlalchemy.bindparam("b_outcome"),
                    decided_ms=sqlalchemy.bindparam("b_decided"),
                ),
                [
                    {
                        "b_key": camera.key,
                        "b_seen": camera.seen_ms,
                        "b_outcome": camera.outcome,
                        "b_decided": camera.decided_ms,
                    }
                    for camera in cameras
                ],
            )
        for camera in cameras:
            camera.changed = False

    def _camera(self, connection: Connection, tenant: str, identity: str) -> _Camera:
        camera = self._cameras.get((tenant, identity))
        if camera is not None:
            return camera
        query = sqlalchemy.select(CAMERAS).where(CAMERAS.c.tenant == tenant, CAMERAS.c.id == identity)
        row = connection.execute(query).one_or_none()
        if row is None:
            insertion = connection.execute(
                CAMERAS.insert().values(tenant=tenant, id=identity, seen_ms=0, outcome="", decided_ms=0)
            )
            camera = _Camera(new_key(insertion))
        else:
            camera = _Camera(row.key, row.seen_ms, row.outcome, row.decided_ms)
        self._cameras[tenant, identity] = camera
        return camera

    def _open(self, connection: Connection, tenant: str, camera: str, watch: str) -> _Series:
        key = self._camera(connection, tenant, camera).key
        query = sqlalchemy.select(SERIES).where(SERIES.c.camera == key, SERIES.c.watch == watch)
        row = connection.execute(query).one_or_none()
        if row is not None:
            return _Series(row.key, row.newest_ms, row.last_ms)
        insertion = connection.execute(
            SERIES.insert().values(camera=key, watch=watch, newest_ms=0, last_ms=0)
        )
        return _Series(new_key(insertion), 0, 0)

    def _bucket(self, connection: Connection, series: _Series, level: int, start: int) -> Bucket:
        if start >= series.last_ms:  # newer than all verdicts of the series, so no row exists
            return Bucket()
        query = sqlalchemy.select(BUCKETS).where(
            BUCKETS.c.level == level, BUCKETS.c.series == series.key, BUCKETS.c.start_ms == start
        )
        row = connection.execute(query).one_or_none()
        return Bucket() if row is None else bucket_of(row)


def _drop_old(series: _Series) -> None:
    """Keep only each level's newest bucket in memory, because the next verdict belongs to it."""
    newest: dict[int, int] = {}
    for level, start in series.buckets:
        newest[level] = max(start, newest.get(level, start))
    series.buckets = {key: bucket for key, bucket in series.buckets.items() if newest[key[0]] == key[1]}
