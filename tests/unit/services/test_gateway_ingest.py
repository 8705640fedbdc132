"""Records that cannot be stored are left out of the history one by one, and everything else is stored."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy

from lookout.runtime.worker import load_settings
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.ingest import Ingest
from lookout.services.gateway.history.records import DEAD_LETTERS, DECODE_STATE, STREAMS, TABLES
from lookout.services.gateway.history.tables import CAMERAS, DOCUMENTS, LETTERS, OFFSETS
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.wire import LABELS, WATCHES, to_json
from tests.fleet.gateway_records import watch
from tests.fleet.strangers import topics
from tests.postgres import postgres
from tests.unit.services.test_gateway_history import FakeMessage


@dataclass(frozen=True, slots=True)
class FarAway(FakeMessage):
    """A record whose producer set its time to a moment that no calendar has."""

    def timestamp(self) -> tuple[int, int]:
        return 1, 10**17


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if request.param == "sqlite":
            url = f"sqlite:///{folder}/history.db"
        else:
            url = stack.enter_context(postgres(tmp_path_factory.mktemp("server"))).new_database()
        made = Database(url)
        stack.callback(made.close)
        made.migrate()
        yield made


def ingest_of(database: Database) -> Ingest:
    settings = load_settings(GatewaySettings, {"LOOKOUT_MODE": "local"})
    ingest = Ingest(settings, database)
    ingest._next = ingest._stored()
    return ingest


def test_a_record_that_no_table_takes_is_left_out_alone(database: Database) -> None:
    letters = DEAD_LETTERS[0]
    messages = [
        FakeMessage(WATCHES.name, 0, 0, b"first", to_json(watch("first"))),
        # json_format quotes half a surrogate pair of a list that is none in its error.
        FakeMessage(WATCHES.name, 0, 1, b"first", b'{"id":"first","rule":{"zones":"\\ud800"}}'),
        FarAway(letters, 1, 0, b"gate", b"x"),
        FakeMessage(letters, 1, 1, b"a\0b", b"x"),  # PostgreSQL has no such text
        FakeMessage(letters, 1, 2, b"gate", b"x"),
        FakeMessage(WATCHES.name, 0, 2, b"last", to_json(watch("last"))),
    ]
    ingest = ingest_of(database)
    ingest._store(messages)
    with database.reading() as connection:
        rows = connection.execute(sqlalchemy.select(DOCUMENTS.c.key, DOCUMENTS.c.fault)).all()
        offsets = connection.scalars(sqlalchemy.select(LETTERS.c.offset)).all()
        places = {(row.topic, row.partition): row.next for row in connection.execute(OFFSETS.select())}
    assert {row.key for row in rows} == {"first", "last"}
    (fault,) = [row.fault for row in rows if row.key == "first"]
    assert "\\ud800" in fault
    assert 2 in offsets
    assert 0 not in offsets
    assert places == {(WATCHES.name, 0): 3, (letters, 1): 3}
    assert ingest_of(database)._next == ingest._next


def test_the_history_goes_on_after_every_strange_record(database: Database) -> None:
    """All kinds of `make test-strangers`: nothing is raised, and an honest record after them is stored."""
    chance = random.Random(7)
    makers = topics.drafts([bytes(188)], {}, chance)
    messages = []
    for topic in (*TABLES, *STREAMS):
        drafts = [make() for make in makers[topic].values()]
        messages += [
            FakeMessage(topic, 3, number, draft.key or b"", draft.value, _headers(draft))
            for number, draft in enumerate(drafts)
        ]
    messages.append(FakeMessage(WATCHES.name, 4, 0, b"honest", to_json(watch("honest"))))
    ingest = ingest_of(database)
    ingest._store(messages)
    with database.reading() as connection:
        query = sqlalchemy.select(DOCUMENTS.c.key).where(DOCUMENTS.c.topic == WATCHES.name)
        assert "honest" in connection.scalars(query).all()
    assert {place[0] for place in ingest._next if place[1] == 3} == {*TABLES, *STREAMS}
    assert LABELS.name in {place[0] for place in ingest._next}


def test_only_cameras_that_decode_can_have_written_become_cameras(database: Database) -> None:
    at_ms = FakeMessage("", 0, 0, b"", b"").timestamp()[1]
    honest = DecodeState(epoch=at_ms * 1000, arrived_ms=at_ms)
    far = DecodeState(epoch=2**53 - 1, arrived_ms=at_ms)
    rows = [(b"gate", honest), (b"\xff\xfe", honest), (b"", honest), (b"k" * 100_000, honest), (b"yard", far)]
    messages = [
        FakeMessage(DECODE_STATE, 5, number, key, Checkpoint(decode=state).SerializeToString())
        for number, (key, state) in enumerate(rows)
    ]
    with database.reading() as connection:
        before = set(connection.scalars(sqlalchemy.select(CAMERAS.c.id)).all())
    ingest = ingest_of(database)
    ingest._store(messages)
    with database.reading() as connection:
        after = set(connection.scalars(sqlalchemy.select(CAMERAS.c.id)).all())
    assert after - before == {"gate"}
    assert ingest._next[DECODE_STATE, 5] == len(rows)


def _headers(draft: topics.Draft) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in draft.headers if value is not None]
