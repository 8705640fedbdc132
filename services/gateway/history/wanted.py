"""Incidents whose evidence must still be stored, because their watches ask for that."""

from __future__ import annotations

import sqlalchemy

from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import WANTED


class Wanted:
    """The list of these incidents, which all gateways with the same database share.

    Args:
        database: The history's database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def incidents(self) -> dict[str, str]:
        """Return the listed incidents with their watches, the oldest incident first."""
        query = sqlalchemy.select(WANTED.c.incident, WANTED.c.watch).order_by(WANTED.c.time_ms)
        with self._database.reading() as connection:
            return {row.incident: row.watch for row in connection.execute(query)}

    def remove(self, incident: str) -> None:
        """Remove an incident from the list, because its evidence is stored or it has no evidence."""
        with self._database.writing() as connection:
            connection.execute(WANTED.delete().where(WANTED.c.incident == incident))
