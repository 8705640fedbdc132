"""The broker's disk is full for a while: a small file system of its own, filled to the last byte."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Producer

from lookout.cli.connect import client_options, reading
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet, KafkaServer, RedisServer
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import cut
from lookout.wire import SEGMENTS, VERDICTS
from tests.eventually import eventually
from tests.fleet.bench import Bench, running

pytestmark = pytest.mark.fleet

CAMERAS = [f"cam-{number}" for number in range(3)]
DISK = "96m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory; skipped where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Write until the disk takes nothing any more."""
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            while _takes(file, size):
                pass


def _takes(file: IO[bytes], size: int) -> bool:
    """Whether the disk took so many bytes."""
    try:
        return file.write(bytes(size)) == size
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broker_without_room_loses_and_doubles_nothing(small_disk: Path, prefix: str) -> None:
    ballast = small_disk / "ballast"
    with KafkaServer(small_disk / "kafka") as server, Bench(server.bootstrap, prefix) as bench:
        with running(bench.settings()) as worker:
            _send(bench, 1, 20)
            bench.flush()
            eventually(lambda: bench.counted(CAMERAS, 20))
            fill(ballast)
            _send(bench, 21, 40)  # what the broker does not take is sent again
            eventually(lambda: not server.alive)  # it ends rather than lose records
            eventually(lambda: not worker.health.ready())
            os.unlink(ballast)
            server.start()
            bench.flush()
            eventually(lambda: bench.counted(CAMERAS, 40))
            assert worker.error is None
        bench.assert_counted(CAMERAS, 40)
        assert bench.read("dlq") == []


def _send(bench: Bench, first: int, last: int) -> None:
    for n in range(first, last + 1):
        for camera in CAMERAS:
            bench.send(camera, n, padding="x" * 20_000)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_services_without_room_answer_all_the_same(small_disk: Path, tmp_path: Path) -> None:
    """Every service's folder is on the full disk: spools, the past, the gateway's history, and the logs.

    No window is lost, no service ends, and the history has everything once there is room again.
    """
    ballast = small_disk / "ballast"
    parts = [segment.data for segment in cut(film())][:15]
    # Little memory, so that tensors go to the disk as soon as they may.
    store = {"store__memory_bytes": "2000000", "store__unread_bytes": "60000000"}
    spools = {
        name: {**store, "store__spool": str(small_disk / f"spool-{name}")}
        for name in ("decode", "prune-encode")
    }
    with (
        KafkaServer(tmp_path / "kafka") as server,
        RedisServer(tmp_path / "redis") as redis,
        Fleet(
            small_disk / "fleet",
            kafka=server.bootstrap,
            redis_url=redis.url,
            settings={"model_dir": str(TINY)},
            stage_settings=spools,
            memory="1h",
            recordings=[film().parent],
            gateway=True,
        ) as fleet,
    ):
        question = DEMO_QUESTIONS["person"]
        rule = Rule(threshold=0.5, k=1, n=1)
        write_watches(fleet.bootstrap, [Watch(id="person", version=1, question=question, rule=rule)])
        publish(fleet, parts[:5])
        before = answered(fleet, 4)
        fill(ballast)
        publish(fleet, parts[5:10])
        during = answered(fleet, before + 4)
        assert fleet.supervise() == []
        ballast.unlink()
        publish(fleet, parts[10:])
        total = answered(fleet, during + 4)
        assert fleet.supervise() == []
        (database,) = fleet.folder.rglob("history.db")
        eventually(lambda: counted(database) >= total, every=0.5)


def film() -> Path:
    """A rendered film that comes with the package."""
    (path,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    return path


def publish(fleet: Fleet, segments: list[bytes]) -> None:
    """Send a camera's next segments."""
    producer = Producer(client_options(fleet.bootstrap))
    for segment in segments:
        producer.produce(SEGMENTS.name, segment, key="yard")
    assert producer.flush(60.0) == 0


def answered(fleet: Fleet, least: int) -> int:
    """How many windows have an answer, once there are so many."""

    def now() -> int:
        with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
            outcomes = [json.loads(record.value() or b"")["outcome"] for record in reader.until_now()]
        assert set(outcomes) <= {"answered"}, outcomes
        return len(outcomes) if len(outcomes) >= least else 0

    return int(eventually(now, every=1.0))


def counted(database: Path) -> int:
    """Verdicts in the gateway's history."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        row = connection.execute(
            "select sum(answers) from buckets where level = (select min(level) from buckets)"
        ).fetchone()
    return int(row[0] or 0)
