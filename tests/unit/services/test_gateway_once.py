"""One-time values: one use over all replicas of a gateway."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy

from lookout.services.gateway.access.once import UsedOnce
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import USED
from tests.postgres import postgres


def sqlite(stack: ExitStack, folder: Path) -> str:
    return f"sqlite:///{folder}/history.db"


def postgresql(stack: ExitStack, folder: Path) -> str:
    return stack.enter_context(postgres(folder)).new_database()


@pytest.mark.parametrize("server", [sqlite, pytest.param(postgresql, marks=pytest.mark.slow)])
def test_of_many_replicas_one_takes_a_value(server: Callable[[ExitStack, Path], str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = server(stack, tmp_path)
        databases = [Database(url) for _ in range(3)]
        for database in databases:
            stack.callback(database.close)
        databases[0].migrate()
        pool = stack.enter_context(ThreadPoolExecutor(9))
        for value in ("a", "b", "c"):
            futures = [pool.submit(UsedOnce(databases[number % 3]).take, value, 60) for number in range(9)]
            assert sum(future.result() for future in futures) == 1


def test_what_expired_is_forgotten(tmp_path: Path) -> None:
    with ExitStack() as stack:
        database = Database(f"sqlite:///{tmp_path}/history.db")
        stack.callback(database.close)
        database.migrate()
        assert UsedOnce(database).take("old", -1)
        assert UsedOnce(database).take("new", 60)
        with database.reading() as connection:
            assert len(connection.execute(sqlalchemy.select(USED)).all()) == 1
