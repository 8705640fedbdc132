"""Removes erased time from the history."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import Connection

from lookout.services.gateway.history.tables import (
    ACTS,
    BUCKETS,
    CAMERAS,
    DOCUMENTS,
    EVENTS,
    INCIDENTS,
    LETTERS,
    OUTAGES,
    SERIES,
)
from lookout.v1.erasures_pb2 import Erasure
from lookout.wire import LABELS


def erase(connection: Connection, erasure: Erasure) -> None:
    """Remove everything about a camera's erased time: sums, incidents with people's notes and labels,
    outages, events and dead letters.

    A sum that overlaps the erased range is removed entirely, so erasing an hour also removes the sum of its
    day.
    """
    begin_ms, end_ms = erasure.begin_us // 1000, -(-erasure.end_us // 1000)
    cameras = sqlalchemy.select(CAMERAS.c.key).where(CAMERAS.c.id == erasure.camera)
    series = sqlalchemy.select(SERIES.c.key).where(SERIES.c.camera.in_(cameras))
    connection.execute(
        BUCKETS.delete().where(
            BUCKETS.c.series.in_(series),
            BUCKETS.c.start_ms < end_ms,
            BUCKETS.c.start_ms + BUCKETS.c.level > begin_ms,
        )
    )
    touched = sqlalchemy.select(INCIDENTS.c.id).where(
        INCIDENTS.c.camera.in_(cameras), INCIDENTS.c.start_ms < end_ms, INCIDENTS.c.end_ms >= begin_ms
    )
    connection.execute(ACTS.delete().where(ACTS.c.incident.in_(touched)))
    for incident in connection.scalars(touched).all():
        connection.execute(
            DOCUMENTS.delete().where(
                DOCUMENTS.c.topic == LABELS.name,
                DOCUMENTS.c.camera == erasure.camera,
                DOCUMENTS.c.key.endswith(f"/{incident}", autoescape=True),
            )
        )
        connection.execute(INCIDENTS.delete().where(INCIDENTS.c.id == incident))
    overlapping = (
        OUTAGES.c.camera == erasure.camera,
        OUTAGES.c.first_ms < end_ms,
        OUTAGES.c.last_ms >= begin_ms,
    )
    connection.execute(OUTAGES.delete().where(*overlapping))
    # Events and dead letters have the time at which they were written, not the footage's time, so all events
    # and dead letters of the camera are removed.
    connection.execute(EVENTS.delete().where(EVENTS.c.camera == erasure.camera))
    connection.execute(LETTERS.delete().where(LETTERS.c.key == erasure.camera))
    if erasure.whole:
        connection.execute(
            CAMERAS.update()
            .where(CAMERAS.c.id == erasure.camera, CAMERAS.c.seen_ms < end_ms)
            .values(seen_ms=0)
        )
