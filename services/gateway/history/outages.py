"""Stores the reasons that agents give for cameras that send nothing, because Redis keeps them only during the
outage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import sqlalchemy
from sqlalchemy import Connection

from lookout.services.gateway.history.asked import UNSEEN
from lookout.services.gateway.history.buckets import HOUR_MS
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import OUTAGES
from lookout.v1.gateway_pb2 import UnwatchedTime


def note(database: Database, said: Mapping[str, str], now_ms: int) -> None:
    """Store the reasons that agents give now.

    If a reason is repeated within an hour, its row is extended, so that an unstable connection does not add a
    row each time.

    Args:
        database: The history's database.
        said: Reasons by camera; none is empty.
        now_ms: Unix milliseconds.
    """
    with database.writing() as connection:
        query = sqlalchemy.select(OUTAGES).where(OUTAGES.c.last_ms > now_ms - HOUR_MS)
        known = {(row.camera, row.said): row.first_ms for row in connection.execute(query)}
        rows = [
            {
                "camera": camera,
                "first_ms": known.get((camera, words), now_ms),
                "last_ms": now_ms,
                "said": words,
            }
            for camera, words in said.items()
        ]
        if rows:
            connection.execute(database.upsert(OUTAGES), rows)


def explain(connection: Connection, stretches: Iterable[UnwatchedTime]) -> None:
    """Fill in why a camera sent nothing in each such stretch: the reason that its agent gave for most of the
    stretch.
    """
    silent = [stretch for stretch in stretches if stretch.reason == UNSEEN]
    if not silent:
        return
    first = min(stretch.start.ToMilliseconds() for stretch in silent)
    last = max(stretch.end.ToMilliseconds() for stretch in silent)
    query = sqlalchemy.select(OUTAGES).where(OUTAGES.c.last_ms >= first, OUTAGES.c.first_ms <= last)
    words = defaultdict(list)
    for row in connection.execute(query):
        words[row.camera].append(row)
    for stretch in silent:
        begin_ms, end_ms = stretch.start.ToMilliseconds(), stretch.end.ToMilliseconds()
        shared = [
            (min(end_ms, row.last_ms) - max(begin_ms, row.first_ms), row.said)
            for row in words[stretch.camera]
            if row.last_ms >= begin_ms and row.first_ms <= end_ms
        ]
        stretch.said = max(shared, default=(0, ""))[1]
