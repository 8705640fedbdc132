"""Partitions are added while records come and processes are killed: nothing is lost or doubled."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from lookout.errors import LookoutRuntimeError
from lookout.local import create_topics
from lookout.local.kafka import KafkaServer
from lookout.runtime.worker import growth, polling
from lookout.runtime.worker.growth import SETTLED_S, Moves, add_partitions
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.wire import PIPELINE, SEGMENTS, Stage, camera_topics
from tests.eventually import eventually
from tests.fleet.bench import Bench, process, running

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(600)]

CAMERAS = [f"cam-{number}" for number in range(12)]
BEFORE, AFTER, RECORDS = 2, 7, 60


def grow(bench: Bench, partitions: int) -> None:
    """As `lookout topics grow` does: what a worker reads grows last."""
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    for names in (("state", "dlq", "out"), ("in",)):
        growth._add(admin, [f"{bench.prefix}{name}" for name in names], partitions)
    bench.partitions = partitions
    bench._producer.list_topics()  # a client that does not ask would not know the new ones for minutes


def test_records_of_a_growing_topic_count_once_through_kills(
    kafka: str, prefix: str, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's counters begin again in a camera's new partition, as an epoch does; in each partition they
    run without a hole."""
    monkeypatch.setattr(polling, "METADATA_MS", 1000)
    bench = stack.enter_context(Bench(kafka, prefix, BEFORE))
    log = tmp_path / "log"
    killed = process(bench.settings("toy-0"), log)
    with running(bench.settings("toy-1")):
        partition = dict.fromkeys(CAMERAS, 0) | dict.fromkeys(CAMERAS[::2], 1)
        for number in range(1, RECORDS + 1):
            if number == RECORDS // 3:
                grow(bench, AFTER)
                partition = {camera: place % AFTER for place, camera in enumerate(CAMERAS)}
            if number in (RECORDS // 3 + 1, RECORDS // 2):
                killed.kill()
                killed.wait()
                killed = process(bench.settings("toy-0"), log)
            for camera in CAMERAS:
                bench.send(camera, number, partition[camera])
            bench.flush()
            time.sleep(0.05)
        eventually(lambda: len(bench.read("out")) >= RECORDS * len(CAMERAS))
    killed.kill()
    killed.wait()
    counted: dict[tuple[str, int], list[int]] = defaultdict(list)
    numbers: dict[str, list[int]] = defaultdict(list)
    for message in bench.read("out"):
        value = json.loads(message.value())
        camera = message.key().decode()
        counted[camera, message.partition()].append(value["count"])
        numbers[camera].append(value["n"])
    assert all(counts == list(range(1, len(counts) + 1)) for counts in counted.values())
    assert {camera: sorted(found) for camera, found in numbers.items()} == {
        camera: list(range(1, RECORDS + 1)) for camera in CAMERAS
    }


def test_a_static_member_that_was_away_while_partitions_were_added_reads_them(
    kafka: str, prefix: str, stack: ExitStack, tmp_path: Path
) -> None:
    bench = stack.enter_context(Bench(kafka, prefix, BEFORE))
    settings = bench.settings(static_member=True, session_timeout_s=6.0)
    worker = process(settings, tmp_path / "log")
    try:
        bench.send("gate", 1, BEFORE - 1)
        bench.flush()
        eventually(lambda: bench.counted(["gate"], 1))
        worker.kill()
        worker.wait()
        grow(bench, AFTER)
        worker = process(settings, tmp_path / "log")
        bench.send("yard", 1, AFTER - 1)
        bench.flush()
        eventually(lambda: "yard" in bench.outputs())
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("forgotten", ["state", "out"])
def test_partitions_that_were_added_by_hand_are_named_with_the_command(
    kafka: str, prefix: str, stack: ExitStack, forgotten: str
) -> None:
    """Somebody altered the topic that is read, and not one that the service writes."""
    bench = stack.enter_context(Bench(kafka, prefix, BEFORE))
    admin = AdminClient({"bootstrap.servers": kafka})
    by_hand = [f"{prefix}{name}" for name in ("state", "out", "dlq", "in") if name != forgotten]
    growth._add(admin, by_hand, BEFORE + 1)
    bench._producer.list_topics()
    bench.send("gate", 1, BEFORE)
    bench.flush()
    with capture_logs() as lines, running(bench.settings()):
        advice = eventually(lambda: [line for line in lines if line.get("advice")])
        growth._add(admin, [f"{prefix}{forgotten}"], BEFORE + 1)
        bench.partitions = BEFORE + 1
        eventually(lambda: bench.outputs()["gate"])
    assert advice[0]["event"] == growth.added_by_hand(f"{prefix}{forgotten}", BEFORE, f"{prefix}in")
    assert f"`lookout topics grow --partitions {BEFORE + 1}`" in advice[0]["event"]


def test_partitions_are_added_and_old_ones_told_of_cameras_that_left(own_kafka: KafkaServer) -> None:
    options = {"bootstrap.servers": own_kafka.bootstrap}
    create_topics(own_kafka.bootstrap, BEFORE)
    own = "counter.state.v1"
    with pytest.raises(LookoutRuntimeError, match=f"no topic {own}"):
        add_partitions(options, AFTER, [own])
    changed = add_partitions(options, AFTER)
    assert changed[-1] == SEGMENTS.name
    assert set(changed) == {topic.name for topic in camera_topics()}
    assert add_partitions(options, AFTER) == (), "a second call finds nothing to do"
    refusal = f"{SEGMENTS.name} has {AFTER} partitions; Kafka cannot remove"
    with pytest.raises(LookoutRuntimeError, match=refusal):
        add_partitions(options, BEFORE)
    _check_notices(options)


def _check_notices(options: dict[str, str]) -> None:
    """A camera that left is told once; one that stayed, never."""
    state = PIPELINE[Stage.DECODE].state.name
    producer = Producer({**options})
    at_ms = int(time.time() * 1000)
    for camera, partition, opened_ms in (("gate", 1, 0), ("gate", 6, 5000), ("yard", 0, 0)):
        decode = DecodeState(epoch=(at_ms + opened_ms) * 1000 + partition, arrived_ms=at_ms + opened_ms)
        value = Checkpoint(decode=decode).SerializeToString()
        producer.produce(state, value, key=camera, partition=partition)
    # Rows that decode did not write: none may tell a partition that a camera left which did not.
    far = DecodeState(epoch=2**53 - 1, arrived_ms=at_ms + 9000)
    for value in (Checkpoint(decode=far).SerializeToString(), b"\xff" * 50, b"{}"):
        for key in (b"yard", b"gate", b"\xff\xfe", b"", b"k" * 100_000):
            for partition in (0, 1, 5, 6):
                producer.produce(state, value, key=key, partition=partition)
    assert producer.flush(30.0) == 0
    now = [0.0]
    moves = Moves(options, lambda: now.__setitem__(0, now[0] + 0.25) or now[0])
    try:
        departures = [departure for _ in range(8) for departure in moves.follow(SETTLED_S)]
        assert [(d.camera, d.partition, d.target) for d in departures] == [("gate", 1, 6)]
        ends = moves._reader.ends(SEGMENTS.name, range(AFTER), 30.0)
    finally:
        moves.close()
    assert {number for number, end in ends.items() if end} == {1}
