"""Limits the history's age and size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from lookout.runtime.observe import logs
from lookout.services.gateway.history.buckets import DAY_MS, HOUR_MS, MINUTE_MS
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import (
    ACTS,
    AUDIT,
    BUCKETS,
    EVENTS,
    INCIDENTS,
    LETTERS,
    OUTAGES,
    REQUESTS,
    SESSIONS,
    WANTED,
)
from lookout.services.gateway.settings import GatewaySettings

#: days for which events, requests and dead letters are kept
_SHORT_DAYS: Final = 7
#: factor by which the ages are lowered per step while the database is too large
_STEP: Final = 0.8


class Retention:
    """Removes rows that are too old; while the database is too large, removes details earlier.

    Args:
        database: The history's database.
        settings: Limits of age and bytes.
        clock: Unix seconds.
    """

    def __init__(
        self, database: Database, settings: GatewaySettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._settings, self._clock = database, settings, clock

    def remove(self) -> None:
        """Remove rows that are too old. While the database is too large, remove younger details too, then
        younger minutes.
        """
        settings = self._settings
        detail, minutes = settings.detail_days, settings.minutes_days
        self._remove(detail, minutes)
        while self._database.bytes() > settings.history_bytes and minutes > 1 / 24:
            detail, minutes = (detail * _STEP, minutes) if detail > 1 / 24 else (detail, minutes * _STEP)
            logs.get("history").warning("the history is too large: removing details earlier", days=detail)
            self._remove(detail, minutes)

    def _remove(self, detail_days: float, minutes_days: float) -> None:
        with self._database.writing() as connection:
            minute = BUCKETS.c.level == MINUTE_MS
            old = BUCKETS.c.start_ms < self._before(detail_days)
            connection.execute(
                BUCKETS.update().where(minute, old, BUCKETS.c.detail.is_not(None)).values(detail=None)
            )
            self._buckets(connection, MINUTE_MS, minutes_days)
        with self._database.writing() as connection:
            for level in (HOUR_MS, DAY_MS):
                self._buckets(connection, level, self._settings.history_days)
            before = self._before(self._settings.history_days)
            expired = sqlalchemy.select(INCIDENTS.c.id).where(INCIDENTS.c.end_ms < before)
            connection.execute(ACTS.delete().where(ACTS.c.incident.in_(expired)))
            connection.execute(INCIDENTS.delete().where(INCIDENTS.c.end_ms < before))
            connection.execute(AUDIT.delete().where(AUDIT.c.time_ms < before))
            connection.execute(OUTAGES.delete().where(OUTAGES.c.last_ms < before))
            short = self._before(_SHORT_DAYS)
            for table in (EVENTS, LETTERS, REQUESTS, WANTED):
                connection.execute(table.delete().where(table.c.time_ms < short))
            now_ms = int(self._clock() * 1000)
            connection.execute(SESSIONS.delete().where(SESSIONS.c.expires_ms < now_ms))

    def _buckets(self, connection: Connection, level: int, days: float) -> None:
        before = self._before(days)
        connection.execute(
            BUCKETS.delete().where(BUCKETS.c.level == level, BUCKETS.c.start_ms < before - level)
        )

    def _before(self, days: float) -> int:
        return int((self._clock() - days * 86_400) * 1000)
