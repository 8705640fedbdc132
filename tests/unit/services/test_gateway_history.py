"""The history's own code without Kafka: rows, sums, and any interleaving of kills and restarts."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings, strategies as st

from lookout.rules import Outcome, coverage_intervals
from lookout.rules.messages import verdict_of
from lookout.rules.types import Rule
from lookout.services.gateway.history.buckets import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Bucket,
    add,
    add_detail,
    covered_until,
    fine_buckets,
    pieces,
)
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import DEAD_LETTERS, Records
from lookout.services.gateway.history.retention import Retention
from lookout.services.gateway.history.series import SeriesBook
from lookout.services.gateway.history.tables import (
    ACTS,
    BUCKETS,
    CAMERAS,
    DOCUMENTS,
    EVENTS,
    INCIDENTS,
    LETTERS,
    OFFSETS,
    QUESTIONS,
    SERIES,
)
from lookout.services.gateway.history.verdict_rows import OUTCOMES, VerdictRow, read_row
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.history.wanted import Wanted
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.routes.cameras import camera_views
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.access_pb2 import ROLE_VIEWER
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.v1.labels_pb2 import Label
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ACTIONS, ALERTS, CAMERA_HEALTH, LABELS, VERDICTS, WATCHES, to_json
from tests.fleet.gateway_records import BEGIN_MS, alert, health_alert, verdict, watch
from tests.postgres import postgres

KEY = b"gate"


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """A record as confluent_kafka gives it; a fake, because no broker is needed to put it into tables."""

    topic_: str
    partition_: int
    offset_: int
    key_: bytes
    value_: bytes | None
    headers_: Sequence[tuple[str, bytes]] = field(default=())
    written_ms_: int = BEGIN_MS + 3_600_000

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Sequence[tuple[str, bytes]]:
        return self.headers_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.written_ms_


def verdicts() -> st.SearchStrategy[Verdict]:
    """Verdicts in every form that the wire has."""

    def made(  # noqa: PLR0917 - hypothesis gives them in their order
        end: int, length: int, outcome: int, p: float, idle: bool, flops: int, tenant: str
    ) -> Verdict:
        message = Verdict(camera="gate", watch="w", outcome=Verdict.Outcome.ValueType(outcome), tenant=tenant)
        message.start.FromMilliseconds(end - length)
        message.end.FromMilliseconds(end)
        if outcome == Verdict.OUTCOME_ANSWERED:
            message.p_yes, message.basis = p, "idle" if idle else "key"
        message.cost.flops_prefill, message.cost.flops_question = flops, flops // 3
        message.cost.device_us = flops // 1024
        return message

    return st.builds(
        made,
        st.integers(10**12, 10**12 + 10**8),
        st.integers(0, 10**7),
        st.sampled_from([1, 3, 4, 5]),
        st.floats(0, 1),
        st.booleans(),
        st.integers(0, 2**63),
        st.sampled_from(["", "north"]),
    )


@given(verdicts())
def test_the_fast_reader_equals_the_parser_of_the_wire(message: Verdict) -> None:
    row = read_row(to_json(message), "gate", 2 * 10**12)
    assert row is not None
    expected = verdict_of(message, Rule())
    assert (row.start_ms, row.end_ms) == (expected.start_ms, expected.end_ms)
    assert OUTCOMES[row.outcome] is expected.outcome
    assert (row.tenant, row.camera, row.watch) == (message.tenant or "default", "gate", "w")
    assert row.p_yes == message.p_yes if message.HasField("p_yes") else math.isnan(row.p_yes)
    assert row.own == float(message.cost.flops_question)
    assert row.device_us == message.cost.device_us
    # The other form of the same message takes the other way, to the same row.
    fields = json.loads(to_json(message))
    fields["outcome"] = Verdict.Outcome.Name(message.outcome)
    slow = read_row(json.dumps(fields).encode(), "gate", 2 * 10**12)
    assert repr(slow) == repr(row)


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"[]", b"null", b'{"camera":"gate"}', b"\xff", b'{"camera":"gate","p_yes":1e999}'],
)
def test_what_is_no_verdict_is_no_row(value: bytes) -> None:
    assert read_row(value, "gate", 2 * 10**12) is None


def test_a_verdict_of_the_far_future_or_of_another_key_is_no_row() -> None:
    message = verdict("gate", 0)
    assert read_row(to_json(message), "gate", BEGIN_MS) is not None
    assert read_row(to_json(message), "yard", BEGIN_MS) is None
    assert read_row(to_json(message), "gate", BEGIN_MS - 2 * DAY_MS) is None


def rows() -> st.SearchStrategy[list[VerdictRow]]:
    """Verdicts of one series whose windows overlap, touch, or leave time out."""
    entry = st.tuples(
        st.integers(0, 90_000), st.integers(0, 20_000), st.sampled_from(range(len(OUTCOMES))), st.floats(0, 1)
    )

    def made(entries: list[tuple[int, int, int, float]]) -> list[VerdictRow]:
        end, out = 10 * DAY_MS, []
        for ahead, length, outcome, p in entries:
            end += ahead
            answered = OUTCOMES[outcome] in (Outcome.ANSWERED, Outcome.IDLE)
            out.append(
                VerdictRow(
                    "t", "c", "w", end - length, end, outcome, p if answered else math.nan, 1.0, 2.0, 3
                )
            )
        return out

    return st.lists(entry, min_size=1, max_size=30).map(made)


@given(rows(), st.sampled_from([1000, 2000, 5000, 10_000, 30_000]))
def test_sums_equal_those_of_the_rules(entries: list[VerdictRow], size_ms: int) -> None:
    minutes: dict[int, Bucket] = {}
    newest = 0
    for row in entries:
        for minute, start, end, ends in pieces(row, newest):
            bucket = minutes.setdefault(minute, Bucket())
            add(bucket, row, end - start, (0, 0), ends=ends)
            add_detail(bucket, row, minute, start, end, ends=ends)
        newest = covered_until(row, newest)
    expected = dict.fromkeys(OUTCOMES, 0)
    for interval in coverage_intervals(_as_rules(entries)):
        expected[interval.outcome] += interval.end_ms - interval.start_ms
    assert [sum(bucket.times[place] for bucket in minutes.values()) for place in range(len(OUTCOMES))] == [
        expected[outcome] for outcome in OUTCOMES
    ]
    assert sum(bucket.verdicts for bucket in minutes.values()) == len(entries)
    assert sum(bucket.device_us for bucket in minutes.values()) == sum(row.device_us for row in entries)
    fine: list[Bucket] = []
    for minute, bucket in minutes.items():
        fine += fine_buckets(minute, bytes(bucket.detail or b""), size_ms).values()
    assert sum(bucket.verdicts for bucket in fine) == len(entries)
    assert sum(sum(bucket.times) for bucket in fine) == sum(expected.values())
    answered = [row.p_yes for row in entries if row.p_yes == row.p_yes]
    assert sum(bucket.p_sum for bucket in fine) == pytest.approx(sum(answered), abs=1e-5)


def _as_rules(entries: Sequence[VerdictRow]) -> Iterator[Any]:
    for place, row in enumerate(entries):
        message = Verdict(
            camera="c", watch="w", window=place, outcome=Verdict.OUTCOME_ANSWERED, p_yes=0.5, basis="key"
        )
        outcome = OUTCOMES[row.outcome]
        message.outcome = {
            Outcome.GAP: Verdict.OUTCOME_GAP,
            Outcome.SKIPPED: Verdict.OUTCOME_SKIPPED,
            Outcome.DEGRADED: Verdict.OUTCOME_DEGRADED,
            Outcome.GATED: Verdict.OUTCOME_GATED,
        }.get(outcome, Verdict.OUTCOME_ANSWERED)
        message.basis = "idle" if outcome is Outcome.IDLE else "key"
        message.start.FromMilliseconds(row.start_ms)
        message.end.FromMilliseconds(row.end_ms)
        yield verdict_of(message, Rule())


def act(number: int, kind: IncidentAction.Kind, actor: str, incident: int) -> IncidentAction:
    """An act on an incident of `gate`."""
    about = alert("gate", incident)
    message = IncidentAction(
        id=f"act-{number}",
        incident=about.incident,
        kind=kind,
        actor=actor,
        note="n" * (number % 2),
        camera="gate",
        watch="lying",
        question=about.question,
        start=about.start,
        end=about.end,
    )
    message.time.FromMilliseconds(BEGIN_MS + number)
    return message


def topics() -> dict[tuple[str, int], list[FakeMessage]]:
    """A small fleet's topics: by topic and partition the records in order."""
    alerts = [alert("gate", number, kind) for number in range(4) for kind in (1, 2, 3)]  # type: ignore[arg-type]
    acts = [
        act(0, IncidentAction.KIND_CLAIM, "ada", 0),
        act(1, IncidentAction.KIND_CLAIM, "bob", 0),
        act(2, IncidentAction.KIND_RESOLVE, "bob", 0),
        act(2, IncidentAction.KIND_RESOLVE, "bob", 0),  # a copy
        act(3, IncidentAction.KIND_FALSE_POSITIVE, "ada", 1),
        act(4, IncidentAction.KIND_REOPEN, "ada", 1),
        act(5, IncidentAction.KIND_NOTE, "ada", 3),
    ]
    gate = [verdict("gate", window, None if window % 7 == 0 else 0.25) for window in range(60)]
    yard = [verdict("yard", window, 0.5, "north") for window in range(40)]
    bad = [b"", b"{}", b"\xff"]
    made: dict[tuple[str, int], list[FakeMessage]] = {}

    def put(topic: str, partition: int, values: list[tuple[bytes, bytes | None]]) -> None:
        # Offsets have holes, as transactions leave them.
        made[topic, partition] = [
            FakeMessage(topic, partition, 3 * place, key, value) for place, (key, value) in enumerate(values)
        ]

    put(ALERTS.name, 0, [(KEY, to_json(message)) for message in alerts])
    put(ACTIONS.name, 0, [(KEY, to_json(message)) for message in acts])
    put(
        VERDICTS.name,
        0,
        [(KEY, to_json(message)) for message in gate[:30]]
        + [(KEY, value) for value in bad]
        + [(KEY, to_json(message)) for message in gate[30:]],
    )
    put(VERDICTS.name, 1, [(b"yard", to_json(message)) for message in yard])
    put(
        WATCHES.name,
        0,
        [(b"lying", to_json(watch(version=1))), (b"lying", to_json(watch(version=2))), (b"gone", None)],
    )
    return made


class _KilledError(Exception):
    """The process ended in the middle of a transaction."""


def ingest(database: Database, plan: Sequence[tuple[int, int, bool]]) -> None:
    """Put the topics into a database by a plan, and what it leaves afterwards.

    Args:
        database: Where.
        plan: Of each transaction: which partition is read, how many records, and whether the process is
            killed before the commit, after which another one goes on from the stored offsets.
    """
    sources, records = topics(), Records(database)
    rest = [(place, 10**6, False) for place in range(len(sources))]
    for place, count, killed in [*plan, *rest]:
        source = sorted(sources)[place % len(sources)]
        with database.reading() as connection:
            query = sqlalchemy.select(OFFSETS.c.next).where(
                OFFSETS.c.topic == source[0], OFFSETS.c.partition == source[1]
            )
            start = connection.scalar(query) or 0
        messages = [message for message in sources[source] if message.offset() >= start][:count]
        if not messages:
            continue
        try:
            with database.writing() as connection:
                batch = records.begin(connection)
                for message in messages:
                    records.take(batch, message)
                records.end(batch)
                connection.execute(
                    database.upsert(OFFSETS),
                    {"topic": source[0], "partition": source[1], "next": messages[-1].offset() + 1},
                )
                if killed:
                    raise _KilledError
        except _KilledError:
            records = Records(database)


def content(database: Database) -> dict[str, list[Any]]:
    """What the tables say, without keys that depend on the order of reading."""
    with database.reading() as connection:

        def rows_of(query: Any) -> list[Any]:
            return sorted(tuple(row) for row in connection.execute(query))

        camera = CAMERAS.c.tenant, CAMERAS.c.id
        sums = [column for column in BUCKETS.c if column.name not in ("series", "detail")]
        return {
            "cameras": rows_of(
                sqlalchemy.select(*camera, CAMERAS.c.seen_ms, CAMERAS.c.outcome, CAMERAS.c.decided_ms)
            ),
            "buckets": rows_of(
                sqlalchemy.select(*camera, SERIES.c.watch, SERIES.c.newest_ms, *sums, BUCKETS.c.detail)
                .join(SERIES, SERIES.c.key == BUCKETS.c.series)
                .join(CAMERAS, CAMERAS.c.key == SERIES.c.camera)
            ),
            "incidents": rows_of(
                sqlalchemy.select(
                    *camera,
                    QUESTIONS.c.text,
                    *(c for c in INCIDENTS.c if c.name not in ("camera", "question", "right")),
                    sqlalchemy.func.coalesce(sqlalchemy.cast(INCIDENTS.c.right, sqlalchemy.Integer), -1),
                )
                .join(CAMERAS, CAMERAS.c.key == INCIDENTS.c.camera)
                .join(QUESTIONS, QUESTIONS.c.key == INCIDENTS.c.question)
            ),
            "acts": rows_of(sqlalchemy.select(ACTS)),
            "documents": rows_of(sqlalchemy.select(DOCUMENTS)),
            "offsets": rows_of(sqlalchemy.select(OFFSETS)),
        }


def made_database(folder: str) -> Database:
    """An empty history."""
    database = Database(f"sqlite:///{folder}/history.db")
    database.migrate()
    return database


@pytest.fixture(scope="module")
def whole() -> dict[str, list[Any]]:
    """The tables after one pass without a kill."""
    with tempfile.TemporaryDirectory() as folder:
        database = made_database(folder)
        ingest(database, [])
        try:
            return content(database)
        finally:
            database.close()


@pytest.mark.long
@given(
    plan=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12), st.booleans()), min_size=1, max_size=40)
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_interleaving_of_kills_gives_the_tables_of_one_pass(
    whole: dict[str, list[Any]], plan: list[tuple[int, int, bool]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = made_database(folder)
        try:
            ingest(database, plan)
            assert content(database) == whole
            with database.reading() as connection:
                numbers = list(
                    connection.scalars(sqlalchemy.select(EVENTS.c.number).order_by(EVENTS.c.number))
                )
            assert numbers == list(range(1, len(numbers) + 1))
            # 12 alerts, 6 acts without the copy, 2 watches
            assert len(numbers) == 20
        finally:
            database.close()


@pytest.mark.slow
def test_postgresql_gives_the_same_tables(whole: dict[str, list[Any]], tmp_path: Path) -> None:
    plans: list[list[tuple[int, int, bool]]] = [
        [],
        [(place, 1 + place % 5, place % 3 == 0) for place in range(30)],
        [(4 - place % 5, 7, place % 2 == 0) for place in range(20)],
    ]
    with postgres(tmp_path) as server:
        for plan in plans:
            database = Database(server.new_database())
            try:
                database.migrate()
                database.migrate()  # a second replica
                ingest(database, plan)
                assert content(database) == whole
                assert database.bytes() > 0
            finally:
                database.close()


def test_the_tables_of_one_pass(whole: dict[str, list[Any]]) -> None:
    verdict_count = sum(row[6] for row in whole["buckets"] if row[4] == MINUTE_MS)
    assert verdict_count == 100
    assert {row[4] for row in whole["buckets"]} == {MINUTE_MS, HOUR_MS, DAY_MS}
    assert len(whole["incidents"]) == 4
    assert len(whole["acts"]) == 6


def test_alerts_of_an_erased_time_come_back_from_nowhere(tmp_path: Path) -> None:
    from lookout.past.erasures.records import new_erasure
    from lookout.wire import ERASURES

    database = made_database(str(tmp_path))
    try:
        ingest(database, [])
        records = Records(database)
        erasure = new_erasure("gate", None, None, (BEGIN_MS + 10_000_000) * 1000, "ada")
        with database.writing() as connection:
            batch = records.begin(connection)
            records.take(batch, FakeMessage(ERASURES.name, 0, 0, erasure.id.encode(), to_json(erasure)))  # type: ignore[arg-type]
            late = alert("gate", 9, Alert.KIND_OPENED)
            records.take(batch, FakeMessage(ALERTS.name, 0, 999, KEY, to_json(late)))  # type: ignore[arg-type]
            records.end(batch)
        left = content(database)
        assert [row[1] for row in left["incidents"]] == []
        assert left["acts"] == []
        assert {row[1] for row in left["buckets"]} == {"yard"}
        assert not [row for row in left["documents"] if row[0] == LABELS.name]
    finally:
        database.close()


@pytest.mark.parametrize("erased_first", [False, True], ids=["as it happens", "rebuilt"])
def test_dead_letters_of_an_erased_camera_go_with_it(tmp_path: Path, erased_first: bool) -> None:
    """Fake records carry the time at which they were written: an hour after `BEGIN_MS`."""
    from lookout.past.erasures.records import new_erasure
    from lookout.wire import ERASURES

    written_us = (BEGIN_MS + 3_600_000) * 1000
    topic = DEAD_LETTERS[0]
    database = made_database(str(tmp_path))
    try:
        records = Records(database)
        erasure = new_erasure("gate", None, None, written_us, "ada")
        early = new_erasure("hall", None, None, written_us - 1, "ada")
        messages = [FakeMessage(topic, 0, at, key, b"") for at, key in enumerate((b"gate", b"yard", b"hall"))]
        erasures = [
            FakeMessage(ERASURES.name, 0, at, each.id.encode(), to_json(each))
            for at, each in enumerate((erasure, early))
        ]
        for message in [*erasures, *messages] if erased_first else [*messages, *erasures]:
            with database.writing() as connection:
                batch = records.begin(connection)
                records.take(batch, message)  # type: ignore[arg-type]
                records.end(batch)
        with database.reading() as connection:
            keys = set(connection.scalars(sqlalchemy.select(LETTERS.c.key)))
            told = set(connection.scalars(sqlalchemy.select(EVENTS.c.camera)))
        # What came after an erasure is of another time; before it is known, nobody can tell.
        assert keys == ({"yard", "hall"} if erased_first else {"yard"})
        assert told <= keys
    finally:
        database.close()


def test_evidence_is_wanted_once_of_closed_incidents_whose_watch_says_so(tmp_path: Path) -> None:
    def closed(number: int, version: int) -> bytes:
        message = alert("gate", number, Alert.KIND_CLOSED)
        message.watch_version = version
        return to_json(message)

    database = made_database(str(tmp_path))
    wanted = Wanted(database)
    plain, keeps = watch("lying", version=1), watch("lying", version=2)
    keeps.keep = True

    def take(*messages: FakeMessage) -> None:
        records = Records(database)
        with database.writing() as connection:
            batch = records.begin(connection)
            for message in messages:
                records.take(batch, message)  # type: ignore[arg-type]
            records.end(batch)

    try:
        take(
            FakeMessage(WATCHES.name, 0, 0, b"lying", to_json(plain)),
            FakeMessage(WATCHES.name, 0, 1, b"lying", to_json(keeps)),
            FakeMessage(ALERTS.name, 0, 0, KEY, closed(0, 1)),
            FakeMessage(ALERTS.name, 0, 1, KEY, closed(1, 2)),
            FakeMessage(ALERTS.name, 0, 2, KEY, to_json(alert("gate", 2))),
        )
        incident = alert("gate", 1).incident
        assert wanted.incidents() == {incident: "lying"}
        wanted.remove(incident)
        opinion = Label(camera="gate", watch="lying", incident=incident, right=True)
        key = f"gate/lying/{incident}".encode()
        take(FakeMessage(LABELS.name, 0, 0, key, to_json(opinion)))
        assert wanted.incidents() == {}
    finally:
        database.close()


def test_an_opinion_belongs_to_its_incident_and_opens_nothing_again(tmp_path: Path) -> None:
    database = made_database(str(tmp_path))
    opinion = alert("gate", 1, Alert.KIND_OPINION)
    opinion.opinion.answer, opinion.opinion.text = SecondOpinion.ANSWER_NO, "no"
    unknown = alert("gate", 5, Alert.KIND_OPINION)
    told = [alert("gate", 1), opinion, alert("gate", 1, Alert.KIND_CLOSED), opinion, unknown]
    records = Records(database)
    with database.writing() as connection:
        batch = records.begin(connection)
        for offset, message in enumerate(told):
            row = FakeMessage(ALERTS.name, 0, offset, KEY, to_json(message))
            records.take(batch, row)  # type: ignore[arg-type]
        records.end(batch)
    with database.reading() as connection:
        rows = connection.execute(sqlalchemy.select(INCIDENTS)).all()
        (view,) = [view_of_row(row, "default") for row in rows]
    assert (view.closed, view.opinion.answer, view.opinion.text) == (True, SecondOpinion.ANSWER_NO, "no")
    assert view.evidence == alert("gate", 1, Alert.KIND_CLOSED).evidence
    database.close()


def test_a_camera_shows_the_fault_of_its_open_incident(tmp_path: Path) -> None:
    database = made_database(str(tmp_path))
    told = [
        health_alert("gate", 1, "dark"),
        health_alert("gate", 1, "covered", Alert.KIND_UPDATED),
        health_alert("yard", 1, "moved"),
        health_alert("yard", 1, "moved", Alert.KIND_CLOSED),
        alert("hall", 1),
    ]
    records = Records(database)
    with database.writing() as connection:
        batch = records.begin(connection)
        for offset, message in enumerate(told):
            row = FakeMessage(ALERTS.name, 0, offset, message.camera.encode(), to_json(message))
            records.take(batch, row)  # type: ignore[arg-type]
            records.book.seen(connection, "default", message.camera, BEGIN_MS)
        records.end(batch)
    with database.reading() as connection:
        views = camera_views(connection, Principal("local", ROLE_VIEWER), None)
        rows = connection.execute(sqlalchemy.select(INCIDENTS)).all()
    assert {view.id: view.fault for view in views} == {"gate": "covered", "yard": "", "hall": ""}
    causes = {row.watch: view_of_row(row, "default").cause for row in rows if not row.closed}
    assert causes == {CAMERA_HEALTH: "covered", "lying": ""}
    database.close()


def test_what_is_too_old_is_removed_and_details_go_first(tmp_path: Path) -> None:
    days = (GatewaySettings.detail_days, GatewaySettings.minutes_days)
    assert days == (7, 60)
    database = made_database(str(tmp_path))
    try:
        ingest(database, [])
        kept = GatewaySettings(mode="local", history_days=400)
        before = content(database)

        def after(days: float, own: GatewaySettings = kept) -> dict[str, list[Any]]:
            Retention(database, own, lambda: BEGIN_MS / 1000 + days * 86_400).remove()
            return content(database)

        assert after(0) == before
        details = [row for row in after(8)["buckets"] if row[-1] is not None]
        assert details == []
        assert {row[4] for row in after(70)["buckets"]} == {HOUR_MS, DAY_MS}
        assert len(after(70)["incidents"]) == 4
        gone = after(500)
        assert (gone["buckets"], gone["incidents"], gone["acts"]) == ([], [], [])
    finally:
        database.close()


def test_a_database_that_is_too_large_loses_details_before_sums(tmp_path: Path) -> None:
    database = made_database(str(tmp_path))
    try:
        ingest(database, [])
        small = GatewaySettings(mode="local", history_bytes=1 << 20)
        assert database.bytes() < 1 << 20
        object.__setattr__(small, "history_bytes", 1)  # below what the setting takes: nothing ever fits
        Retention(database, small, lambda: BEGIN_MS / 1000 + 0.5 * 86_400).remove()
        left = content(database)
        assert {row[4] for row in left["buckets"]} == {HOUR_MS, DAY_MS}
        assert len(left["incidents"]) == 4
    finally:
        database.close()


def test_a_camera_s_outcome_is_that_of_its_newest_window_whatever_its_clock_says(tmp_path: Path) -> None:
    database = made_database(str(tmp_path))
    try:
        book = SeriesBook(database)
        row = read_row(to_json(verdict("gate", 0, None)), "gate", BEGIN_MS)
        assert row is not None
        with database.writing() as connection:
            book.seen(connection, "default", "gate", BEGIN_MS + 10**9)  # its segments arrived later
            book.count(connection, row, (0, 0))
            book.write(connection)
        (camera,) = content(database)["cameras"]
        assert camera == ("default", "gate", BEGIN_MS + 10**9, "gap", row.end_ms)
    finally:
        database.close()
