"""A backup of the broker's volume: a copy of its folder, started elsewhere, continues where the fleet was.

Of a broker that was stopped, and of one that runs: a snapshot is all of its files at one moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from lookout.local import Fleet, KafkaServer
from lookout.models import TINY
from lookout.past.verification import verify
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import SEGMENTS, Stage
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece, pieces

pytestmark = [pytest.mark.fleet, pytest.mark.long]

CAMERAS, PARTITIONS = 3, 4
STRIDES = 12  # of each camera, the first half before the backup
HALF = STRIDES // 2


def fleet(folder: Path, kafka: KafkaServer) -> Fleet:
    """Every stage, with a Redis of its own that is empty."""
    settings = {"model_dir": str(TINY), "stride_s": str(run.STRIDE_S), "window_s": str(run.WINDOW_S)}
    return Fleet(
        folder,
        kafka=kafka.bootstrap,
        settings=settings,
        stage_settings={Stage.DECODE: {"silence_s": "86400"}},
        partitions=PARTITIONS,
        open_servers=True,
    )


def publish(running: Fleet, film: Sequence[Piece], half: int) -> None:
    """One half of every camera, and wait for its outcomes."""
    first, last = half * HALF * run.STRIDE_S, (half + 1) * HALF * run.STRIDE_S
    publisher = run.Publisher(
        running.bootstrap, [piece for piece in film if first <= piece.start_s < last], pace=None
    )
    publisher.start()
    decided(running, publisher, HALF * (half + 1))


def decided(running: Fleet, publisher: run.Publisher, windows: int) -> None:
    """Wait until everything is published and so many windows of each camera have their outcomes."""
    expected = CAMERAS * len(run.QUESTIONS) * windows
    eventually(
        lambda: (
            running.supervise(),
            publisher.done and outcomes.read(running.bootstrap).outcomes >= expected,
        )[-1],
        seconds=300.0,
        every=0.5,
    )


def cameras() -> list[Piece]:
    """The segments of every camera."""
    return [
        piece
        for number in range(CAMERAS)
        for piece in pieces(f"cam-{number}", number, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    ]


def received(bootstrap: str) -> Counter[str]:
    """How many segments of each camera the broker has."""
    with Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    ) as consumer:
        consumer.assign([TopicPartition(SEGMENTS.name, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
        found: Counter[str] = Counter()
        ends = 0
        while ends < PARTITIONS:
            if (message := consumer.poll(30.0)) is None:
                raise AssertionError("the broker answers nothing")
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
            elif key := message.key():
                found[key.decode()] += 1
    return found


def snapshot(kafka: KafkaServer, target: Path) -> None:
    """Copy a running broker's folder as it is at one moment."""
    assert kafka.pid is not None
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        shutil.copytree(kafka.folder, target)
    finally:
        os.kill(kafka.pid, signal.SIGCONT)


@pytest.mark.timeout(900)
def test_a_snapshot_of_a_running_broker_continues_from_its_moment(tmp_path: Path) -> None:
    film = cameras()
    with KafkaServer(tmp_path / "before") as kafka, fleet(tmp_path / "first", kafka) as running:
        run.watch(running.bootstrap)
        publisher = run.Publisher(running.bootstrap, film, pace=0.5)
        publisher.start()
        first_windows = CAMERAS * len(run.QUESTIONS) * 2
        eventually(lambda: outcomes.read(kafka.bootstrap).outcomes >= first_windows, seconds=300.0, every=0.2)
        snapshot(kafka, tmp_path / "after")
        assert not publisher.done
        decided(running, publisher, STRIDES)
        whole = outcomes.read(running.bootstrap)
    shutil.rmtree(tmp_path / "before")
    with KafkaServer(tmp_path / "after") as kafka:
        there, committed = received(kafka.bootstrap), outcomes.read(kafka.bootstrap)
        assert 0 < committed.outcomes < whole.outcomes
        seen: Counter[str] = Counter()
        missing = []
        for piece in sorted(film, key=lambda piece: piece.start_s):
            seen[piece.camera] += 1
            if seen[piece.camera] > there[piece.camera]:
                missing.append(piece)
        assert 0 < len(missing) < len(film)
        with fleet(tmp_path / "second", kafka) as running:
            publisher = run.Publisher(running.bootstrap, missing, pace=None)
            publisher.start()
            decided(running, publisher, STRIDES)
            again = outcomes.read(running.bootstrap)
            tally = verify(
                TINY,
                running.bootstrap,
                common={"stride_s": run.STRIDE_S, "window_s": run.WINDOW_S},
                tolerance=outcomes.SAME,
            )
    assert outcomes.compare(whole, again) == []
    copies = {**again.verdicts, **again.alerts}
    assert [name for name, rows in copies.items() if len(rows) > 1] == []
    assert {verdict.epoch for verdict, *_ in again.verdicts.values()} == {
        verdict.epoch for verdict, *_ in committed.verdicts.values()
    }
    assert tally.unverified == []


@pytest.mark.timeout(900)
def test_a_copy_of_the_brokers_folder_continues_where_the_fleet_was(tmp_path: Path) -> None:
    film = cameras()
    with KafkaServer(tmp_path / "before") as kafka, fleet(tmp_path / "first", kafka) as running:
        run.watch(running.bootstrap)
        publish(running, film, 0)
    # As a volume would be: the broker has ended, and nothing but its files goes to the other place.
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    shutil.rmtree(tmp_path / "before")
    with KafkaServer(tmp_path / "after") as kafka, fleet(tmp_path / "second", kafka) as running:
        publish(running, film, 1)
        committed = outcomes.read(running.bootstrap)
        tally = verify(
            TINY,
            running.bootstrap,
            common={"stride_s": run.STRIDE_S, "window_s": run.WINDOW_S},
            tolerance=outcomes.SAME,
        )
    assert committed.outcomes == CAMERAS * len(run.QUESTIONS) * STRIDES
    copies = {**committed.verdicts, **committed.alerts}
    assert [name for name, rows in copies.items() if len(rows) > 1] == []
    verdicts = [verdict for verdict, *_ in committed.verdicts.values()]
    assert len({(verdict.camera, verdict.epoch) for verdict in verdicts}) == CAMERAS
    answered = sum(verdict.outcome == Verdict.OUTCOME_ANSWERED for verdict in verdicts)
    assert (tally.counts["verified"], tally.unverified) == (answered, [])
    # Each camera's first window, and the first behind the restore, whose KV nobody has.
    assert outcomes.bases(committed)["key"] == 2 * CAMERAS * len(run.QUESTIONS)
