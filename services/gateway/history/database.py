"""The history's database (SQLite or PostgreSQL): its connections and its schema."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from lookout.errors import StartupError
from lookout.services.gateway.history.tables import FACTS
from lookout.text import public_url

GENERATION: Final = "generation"
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
#: key of PostgreSQL's advisory lock that a replica takes while it changes the schema
_SCHEMA_LOCK: Final = 0x6C6F_6F6B
_BUSY_MS: Final = 30_000
#: pages in SQLite's write-ahead log after which the log is copied into the database file
_CHECKPOINT_PAGES: Final = 4000


class Database:
    """Connections to one database.

    Args:
        url: sqlite:///FILE or postgresql://user:password@host/name.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")
        if self.is_sqlite:
            self._reads, self._writes = _sqlite(url, "DEFERRED"), _sqlite(url, "IMMEDIATE")
        else:
            address = "postgresql+psycopg" + url.removeprefix("postgresql")
            self._reads = self._writes = sqlalchemy.create_engine(
                address, pool_size=8, max_overflow=16, pool_pre_ping=True
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection on which all reads see the same state."""
        with self._reads.connect() as connection:
            if not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction, which is committed at the end and rolled back on an exception."""
        with self._writes.begin() as connection:
            yield connection

    def upsert(self, table: sqlalchemy.Table) -> Any:
        """Return an INSERT that replaces the row with the same primary key."""
        insert: Any = (sqlite if self.is_sqlite else postgresql).insert(table)
        keys = [column.name for column in table.primary_key]
        changed = {
            column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys
        }
        return insert.on_conflict_do_update(index_elements=keys, set_=changed)

    def insert_new(self, table: sqlalchemy.Table) -> Any:
        """Return an INSERT that leaves an existing row unchanged."""
        insert: Any = (sqlite if self.is_sqlite else postgresql).insert(table)
        return insert.on_conflict_do_nothing()

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema up to date.

        Args:
            revision: The schema's revision; default: the newest one.

        Raises:
            StartupError: The database cannot be used.
        """
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        try:
            with self._writes.begin() as connection:
                if not self.is_sqlite:
                    connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
                config.attributes["connection"] = connection
                command.upgrade(config, revision)
                connection.execute(self.insert_new(FACTS).values(name=GENERATION, value=secrets.token_hex(4)))
        except (SQLAlchemyError, CommandError, OSError) as error:
            reason = str(getattr(error, "orig", error)).strip().splitlines()
            raise StartupError(
                f"LOOKOUT_DATABASE_URL={public_url(self.url)}: {reason[0] if reason else error!r}; delete "
                f"the database (the history is then reread from Kafka, except for past outages' reasons), "
                f"or choose another database"
            ) from error

    def fact(self, connection: Connection, name: str) -> str | None:
        """Return a stored single value by its name; None if there is no such value."""
        value: str | None = connection.scalar(sqlalchemy.select(FACTS.c.value).where(FACTS.c.name == name))
        return value

    def bytes(self) -> int:
        """Return the database's size in bytes."""
        with self.reading() as connection:
            if not self.is_sqlite:
                return int(
                    connection.scalar(sqlalchemy.text("SELECT pg_database_size(current_database())")) or 0
                )
            pages = connection.scalar(sqlalchemy.text("PRAGMA page_count")) or 0
            free = connection.scalar(sqlalchemy.text("PRAGMA freelist_count")) or 0
            size = connection.scalar(sqlalchemy.text("PRAGMA page_size")) or 0
            return (int(pages) - int(free)) * int(size)

    def close(self) -> None:
        """Close all connections."""
        self._reads.dispose()
        self._writes.dispose()


def new_key(made: sqlalchemy.CursorResult[Any]) -> int:
    """Return the key of a row that was just inserted."""
    row: Any = made.inserted_primary_key
    return int(row[0])


def _sqlite(url: str, begin: str) -> sqlalchemy.Engine:
    """Return an engine whose transactions start with `BEGIN {begin}`. With IMMEDIATE, a writing transaction
    takes the lock at its start, so it cannot fail halfway for lack of it.
    """
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": _BUSY_MS / 1000}, pool_size=16)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are started below, not by the driver
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
            "cache_size=-65536",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine
