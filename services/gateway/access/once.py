"""Records which one-time values were used, for all of the gateway's replicas."""

from __future__ import annotations

import time

from lookout.services.gateway.access.sessions import digest
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import USED


class UsedOnce:
    """The one-time values that were used.

    Args:
        database: The history's database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, value: str, seconds: float) -> bool:
        """Record that a value is used; return whether this is its first use.

        Args:
            value: The one-time secret, already verified.
            seconds: For how long the value is valid; after that, its use is forgotten.
        """
        now_ms = int(time.time() * 1000)
        row = {"digest": digest(value), "expires_ms": now_ms + round(seconds * 1000)}
        with self._database.writing() as connection:
            connection.execute(USED.delete().where(USED.c.expires_ms < now_ms))
            insert = self._database.insert_new(USED).returning(USED.c.digest)
            return connection.scalar(insert, row) is not None
