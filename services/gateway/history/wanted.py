"""Incidents whose evidence still has to be kept, because their watch says so."""

from __future__ import annotations

import sqlalchemy

from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import WANTED


class Wanted:
    """The list, which all gateways of a database share.

    Args:
        database: The history's database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def incidents(self) -> dict[str, str]:
        """Incidents, oldest first, with their watches."""
        query = sqlalchemy.select(WANTED.c.incident, WANTED.c.watch).order_by(WANTED.c.time_ms)
        with self._database.reading() as connection:
            return {row.incident: row.watch for row in connection.execute(query)}

    def remove(self, incident: str) -> None:
        """Remove an incident: its evidence is kept, or it has none."""
        with self._database.writing() as connection:
            connection.execute(WANTED.delete().where(WANTED.c.incident == incident))
