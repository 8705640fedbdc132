"""The migrations of the history: they make the tables of `tables.py`, and replicas may run them at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.script import ScriptDirectory

from lookout.services.gateway.history import database as database_module
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import CAMERAS, DOCUMENTS, METADATA, SOURCES, USED
from lookout.wire import CAMERAS as CAMERA_TOPIC
from tests.postgres import PostgresServer, postgres

MIGRATE = """
import sys
from lookout.services.gateway.history.database import Database
Database(sys.argv[1]).migrate()
"""
PG_SCHEMA = (
    "SELECT table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable, "
    "regexp_replace(coalesce(column_default, ''), '[a-z_]+_seq', 'seq') FROM information_schema.columns "
    "WHERE table_schema = 'public' AND table_name <> 'alembic_version' ORDER BY 1, 3",
    "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' "
    "AND tablename <> 'alembic_version' ORDER BY 1, 2",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace "
    "AND conrelid::regclass::text NOT LIKE '%alembic_version' ORDER BY 1, 2",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """A database that is closed afterwards."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def schema(database: Database) -> Any:
    """Every table, column, index and constraint as the database itself describes them."""
    with database.reading() as connection:
        if not database.is_sqlite:
            return [
                [tuple(row) for row in connection.exec_driver_sql(query.replace("%", "%%"))]
                for query in PG_SCHEMA
            ]
        tables: dict[str, Any] = {}
        names = connection.exec_driver_sql(
            "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name"
        ).all()
        for name, without_rowid in names:
            if name.startswith("sqlite_") or name == "alembic_version":
                continue
            tables[name] = {
                "without_rowid": without_rowid,
                "columns": connection.exec_driver_sql(f'PRAGMA table_xinfo("{name}")').all(),
                "foreign": connection.exec_driver_sql(f'PRAGMA foreign_key_list("{name}")').all(),
                "indices": sorted(
                    (index.unique, index.origin, connection.exec_driver_sql(
                        f'PRAGMA index_xinfo("{index.name}")'
                    ).all(), index.name if index.origin == "c" else "")
                    for index in connection.exec_driver_sql(f'PRAGMA index_list("{name}")')
                ),
            }  # fmt: skip
        return tables


def check_tables(migrated_url: str, created_url: str) -> None:
    """Compare what the migrations make with what `tables.py` makes."""
    with opened(migrated_url) as migrated, opened(created_url) as created:
        migrated.migrate()
        with created.writing() as connection:
            METADATA.create_all(connection)
        assert schema(migrated)
        assert schema(migrated) == schema(created)


def test_the_migrations_make_the_tables_on_sqlite(tmp_path: Path) -> None:
    check_tables(f"sqlite:///{tmp_path}/migrated.db", f"sqlite:///{tmp_path}/created.db")


@pytest.mark.slow
def test_the_migrations_make_the_tables_on_postgresql(server: PostgresServer) -> None:
    check_tables(server.new_database(), server.new_database())


def test_no_migration_uses_the_tables_of_today() -> None:
    scripts = ScriptDirectory(str(database_module._MIGRATIONS))
    assert len(scripts.get_heads()) == 1
    for script in scripts.walk_revisions():
        source = Path(script.path).read_text()
        assert "gateway.history.tables" not in source, script.path


def old_database(url: str) -> None:
    """A database of the first migration, with a row."""
    with opened(url) as database:
        database.migrate("0001")
        with database.writing() as connection:
            connection.execute(
                CAMERAS.insert(),
                {"tenant": "", "id": "gate", "seen_ms": 1, "outcome": "answered", "decided_ms": 1},
            )


def check_moves_up(url: str) -> None:
    """Let four processes migrate an old database at once; its rows stay."""
    old_database(url)
    with opened(url) as database:
        with database.reading() as connection:
            assert not sqlalchemy.inspect(connection).has_table(USED.name)
        processes = [
            subprocess.Popen([sys.executable, "-c", MIGRATE, url], stderr=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        outcomes = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
        assert [code for _, code in outcomes] == [0] * 4, outcomes
        with database.reading() as connection:
            assert connection.scalar(sqlalchemy.select(CAMERAS.c.id)) == "gate"
            assert connection.execute(sqlalchemy.select(USED)).all() == []
            versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
        assert len(versions) == 1
        assert versions[0][0] > "0001"


def test_cameras_that_were_read_before_are_to_be_pulled_since_they_were_written(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/history.db") as database:
        database.migrate("0006")
        bodies = {
            "gate": {"id": "gate", "url": "rtsp://192.0.2.7/live"},
            "yard": {"id": "yard", "tenant": "north"},
        }
        with database.writing() as connection:
            for key, body in bodies.items():
                row = {"topic": CAMERA_TOPIC.name, "key": key, "tenant": "", "camera": "", "written_ms": 5}
                row |= {"body": json.dumps(body).encode(), "fault": "", "owner": ""}
                connection.execute(DOCUMENTS.insert(), row)
        database.migrate()
        with database.reading() as connection:
            rows = connection.execute(sqlalchemy.select(SOURCES).order_by(SOURCES.c.camera)).all()
        assert [tuple(row) for row in rows] == [
            ("gate", -1, 5, "default", True),
            ("yard", -1, 5, "north", False),
        ]


@pytest.mark.slow
def test_an_old_sqlite_moves_up_while_gateways_start(tmp_path: Path) -> None:
    check_moves_up(f"sqlite:///{tmp_path}/history.db")


@pytest.mark.long
@pytest.mark.slow
def test_an_old_postgresql_moves_up_while_gateways_start(server: PostgresServer) -> None:
    check_moves_up(server.new_database())
