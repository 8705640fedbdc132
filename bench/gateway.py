"""The gateway's history: rows per second on one core, and lists and timelines over ten million verdicts.

Run `make bench-gateway`. Records are written into the tables as the service writes them, but without Kafka;
lists are those that the routes request. Each clip of 20 s is cut at another place from a real Kafka whose
`frames.v1` also has the records of all other cameras. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy

from lookout.local import KafkaServer, create_topics
from lookout.past.erasures import Fence
from lookout.runtime.kafka_clients import Producer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import (
    LEVELS,
    MINUTE_MS,
    Bucket,
    add,
    add_detail,
    covered_until,
    pieces,
)
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.history.tables import BUCKETS, CAMERAS, INCIDENTS, QUESTIONS, SERIES
from lookout.services.gateway.history.verdict_rows import VerdictRow
from lookout.services.gateway.media.footage import Footage
from lookout.services.gateway.media.store import Media
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.access_pb2 import Role
from lookout.wire import FRAMES, VERDICTS, to_json
from tests.fleet.gateway_footage import FilmedCamera
from tests.fleet.gateway_records import BEGIN_MS, alert, verdict
from tests.unit.video.segments.clips import encode

CAMERAS_: Final = 1000
WATCHES_: Final = 3
PARTITIONS: Final = 4
FILMED_S: Final = 120
SEGMENT_S: Final = 2
EVERYBODY: Final = Principal("bench", Role.ROLE_ADMINISTRATOR)


@dataclass(frozen=True, slots=True)
class Message:
    """A record as Kafka's client gives it."""

    at: int
    name: bytes
    body: bytes

    def topic(self) -> str:
        return VERDICTS.name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.body

    def timestamp(self) -> tuple[int, int]:
        return 1, BEGIN_MS + 3_600_000


def messages(count: int) -> list[Message]:
    """Verdicts of all cameras and watches, window after window."""
    made: list[Message] = []
    window = 0
    while len(made) < count:
        for camera in range(CAMERAS_):
            name = f"camera-{camera:04d}"
            for watch in range(WATCHES_):
                body = to_json(verdict(name, window, (camera % 100) / 100, watch=f"watch-{watch}"))
                made.append(Message(len(made), name.encode(), body))
        window += 1
    return made[:count]


def ingest(database: Database, rows: list[Message], batch: int) -> float:
    """Rows a second of this process's CPU time, as the service stores them."""
    records = Records(database)
    begun = time.process_time()
    for start in range(0, len(rows), batch):
        with database.writing() as connection:
            transaction = records.begin(connection)
            for message in rows[start : start + batch]:
                records.take(transaction, message)
            records.end(transaction)
    return len(rows) / (time.process_time() - begun)


def fill(database: Database, verdicts: int) -> None:
    """A day and more of verdicts of every series, as the tables hold them, and a year's incidents."""
    per_series = verdicts // (CAMERAS_ * WATCHES_)
    now_ms = int(time.time() * 1000) // 86_400_000 * 86_400_000
    template = _series_rows(per_series, now_ms)
    with database.writing() as connection:
        series = list(connection.scalars(sqlalchemy.select(SERIES.c.key)))
        connection.execute(BUCKETS.delete())
        for key in series:
            connection.execute(BUCKETS.insert(), [{**row, "series": key} for row in template])
    fill_incidents(database, now_ms)


def fill_incidents(database: Database, now_ms: int) -> None:
    """A year's incidents, 100 000, of the cameras that the history has.

    Args:
        database: The history's.
        now_ms: When the newest one began, Unix milliseconds.
    """
    with database.writing() as connection:
        keys = {row.id: row.key for row in connection.execute(sqlalchemy.select(CAMERAS.c.id, CAMERAS.c.key))}
        question = connection.execute(QUESTIONS.insert().values(text="Is anyone there?"))
        number = (question.inserted_primary_key or (0,))[0]
        connection.execute(INCIDENTS.insert(), list(_incidents(keys, number, now_ms)))


def _series_rows(count: int, begin_ms: int) -> list[dict[str, Any]]:
    made: dict[tuple[int, int], Bucket] = {}
    newest = 0
    for number in range(count):
        end = begin_ms + 10_000 + 2000 * number
        row = VerdictRow("default", "c", "w", end - 10_000, end, 0, 0.25, 1.0, 1.0, 1)
        for minute, start, stop, ends in pieces(row, newest):
            for level in LEVELS:
                bucket = made.setdefault((level, minute // level * level), Bucket())
                add(bucket, row, stop - start, (0, number), ends=ends)
                if level == MINUTE_MS:
                    add_detail(bucket, row, minute, start, stop, ends=ends)
        newest = covered_until(row, newest)
    return [{"level": level, "start_ms": start, **bucket.row()} for (level, start), bucket in made.items()]


def _incidents(keys: dict[str, int], question: int, now_ms: int) -> Iterator[dict[str, Any]]:
    names = sorted(keys)  # so that it is known which camera has which states
    for number in range(100_000):
        name = names[number % len(names)]
        message = alert(name, number)
        yield {
            "id": message.incident,
            "camera": keys[name],
            "watch": "watch-0",
            "question": question,
            "start_ms": now_ms - 315_000 * number,  # a year
            "end_ms": now_ms - 315_000 * number + 10_000,
            "closed": True,
            "peak": 0.9,
            "state": 1 + number % 5,
            "assignee": "",
            "right": None,
            "notes": 0,
            "alert": to_json(message),
        }


def timed(ask: Callable[[], object], times: int = 7) -> float:
    """Milliseconds of a call: the least of several, which others on the machine disturb least."""
    ask()
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        ask()
        taken.append(1000 * (time.perf_counter() - begun))
    return min(taken)


def lists(database: Database) -> float:
    """The slowest list of incidents and cameras, in milliseconds."""
    filters = (
        queries.IncidentFilter(),
        queries.IncidentFilter(camera="camera-0007"),
        queries.IncidentFilter(states=[2]),
        queries.IncidentFilter(words="anyone"),
        queries.IncidentFilter(camera="camera-09*", states=[1, 3]),
        queries.IncidentFilter(camera="*5*", watch="watch-0"),
        queries.IncidentFilter(closed=False),
    )

    def incidents(wanted: queries.IncidentFilter) -> object:
        with database.reading() as connection:
            return queries.incidents(connection, EVERYBODY, wanted, "", 100)

    def cameras() -> object:
        with database.reading() as connection:
            return queries.cameras_of(connection, EVERYBODY)

    return max([timed(cameras), *(timed(lambda wanted=wanted: incidents(wanted)) for wanted in filters)])


def timeline(database: Database) -> float:
    """A day of one camera's three watches in minutes, in milliseconds."""
    with database.reading() as connection:
        begin_ms = connection.scalar(sqlalchemy.select(sqlalchemy.func.min(BUCKETS.c.start_ms))) or 0

    def ask() -> object:
        with database.reading() as connection:
            series = queries.series_of(connection, EVERYBODY, "camera-0500", None)
            return queries.sums(connection, series, begin_ms, begin_ms + 86_400_000, MINUTE_MS)

    return timed(ask)


def clip(folder: Path) -> float:
    """A clip of 20 s of one of all cameras, from the segments on, in milliseconds: the least of several."""
    begin_ms = int(time.time() * 1000) - 1000 * FILMED_S
    with KafkaServer(folder / "kafka") as kafka:
        create_topics(kafka.bootstrap, PARTITIONS)
        camera = FilmedCamera(kafka.bootstrap, "filmed", begin_ms)
        camera.film(encode("ts", "libx264", frames=10 * FILMED_S, size=(1280, 720), speed=1), SEGMENT_S)
        _others(kafka.bootstrap, camera, begin_ms)
        media = Media(Footage(GatewaySettings(mode="local", bootstrap=kafka.bootstrap)), Fence)
        near, _ = camera.frames[-1]
        begins = iter(range(0, FILMED_S - 20, 3))

        def ask() -> object:
            from_us = 1000 * (begin_ms + 1000 * next(begins))
            return media.clip("filmed", from_us, from_us + 20_000_000, lambda *_: True, near)

        try:
            return timed(ask)
        finally:
            media.close()


def _others(kafka: str, camera: FilmedCamera, begin_ms: int) -> None:
    """The frames records of the other cameras, at the times at which they would have come."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50})
    for number, (ref, record) in enumerate(camera.frames):
        value = record.SerializeToString()
        at_ms = begin_ms + 1000 * SEGMENT_S * number
        for other in range(CAMERAS_ - 1):
            partition = (ref.partition + other) % PARTITIONS
            producer.produce(FRAMES.name, value, f"camera-{other:04d}", partition=partition, timestamp=at_ms)
            producer.poll(0)
    producer.flush(60)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="verdicts that are ingested")
    parser.add_argument("--batch", type=int, default=9000, help="records of a transaction")
    parser.add_argument("--verdicts", type=int, default=10_000_000, help="verdicts of the filled history")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'history.db'}")
        database.migrate()
        rows = messages(options.rows)
        rate = ingest(database, rows, options.batch)
        fill(database, options.verdicts)
        figures = {
            "ingest_rows_s": round(rate),
            "list_ms": round(lists(database), 1),
            "timeline_ms": round(timeline(database), 1),
            "clip_ms": round(clip(Path(folder)), 1),
            "database_mb": round(database.bytes() / 1e6),
        }
        database.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
