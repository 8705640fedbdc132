"""The alerts service as a process: killed at random moments, its incidents are those of the rules."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from lookout.cli.connect import make_producer
from lookout.local import KafkaServer, create_topics, guarded
from lookout.services.alerts.handler import AlertsHandler
from lookout.v1 import verdicts_pb2, watches_pb2
from lookout.wire import ALERTS, VERDICTS, WATCHES, to_json
from lookout.wire.headers import text
from tests.clock import at

pytestmark = pytest.mark.fleet

CAMERAS = 3
WINDOWS = 40
Events = dict[str, list[tuple[str, str]]]  # camera: (id, kind) in order


def verdicts() -> list[verdicts_pb2.Verdict]:
    """Three cameras' answers, interleaved; wandering scores make incidents open and close."""
    draw = random.Random(7)
    return [
        verdicts_pb2.Verdict(
            camera=f"camera-{camera}",
            epoch=1,
            window=window,
            watch="fall",
            watch_version=1,
            question="Is anyone lying on the ground?",
            outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED,
            p_yes=draw.random(),
            start=at(1000 + window * 2000),
            end=at(3000 + window * 2000),
        )
        for window in range(WINDOWS)
        for camera in range(CAMERAS)
    ]


def expected() -> Events:
    """The events by the rules alone."""
    from lookout.runtime.worker import Record

    handler = AlertsHandler(lambda *_: True)
    states = {f"camera-{n}": handler.load(f"camera-{n}", None) for n in range(CAMERAS)}
    events: Events = {camera: [] for camera in states}
    for verdict in verdicts():
        record = Record(VERDICTS.name, 0, 0, verdict.camera, to_json(verdict))
        for output in handler.handle(states[verdict.camera], record).outputs:
            events[verdict.camera].append(event_of(output.value))
    return events


def event_of(value: bytes | None) -> tuple[str, str]:
    alert = json.loads(value or b"")
    return alert["id"], alert["kind"]


def still_open(events: Events) -> int:
    """Incidents without a closing: openings and closings alternate."""
    return sum(len([kind for _, kind in each if kind != "updated"]) % 2 for each in events.values())


@contextmanager
def service(bootstrap: str, redis_url: str, log: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m lookout.services.alerts` as a process of its own."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")},
        "LOOKOUT_BOOTSTRAP": bootstrap,
        "LOOKOUT_REDIS_URL": redis_url,
        "LOOKOUT_INSTANCE": "alerts-0",
        "LOOKOUT_HOST": "127.0.0.1",
        **{f"LOOKOUT_{name.upper()}": value for name, value in settings.items()},
    }
    with log.open("ab") as sink:
        process = subprocess.Popen(
            guarded([sys.executable, "-m", "lookout.services.alerts"]),
            env=environment,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def read_alerts(bootstrap: str, wanted: int, deadline_s: float) -> Events:
    """Committed events per camera, in order: all of them, once `wanted` have come or time is up."""
    with Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    ) as consumer:
        partitions = consumer.list_topics(ALERTS.name, timeout=60).topics[ALERTS.name].partitions
        consumer.assign([TopicPartition(ALERTS.name, number, OFFSET_BEGINNING) for number in partitions])
        events: Events = {f"camera-{n}": [] for n in range(CAMERAS)}
        ended: set[int] = set()
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and (
            sum(map(len, events.values())) < wanted or len(ended) < len(partitions)
        ):
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
                continue
            ended.discard(message.partition())
            assert text(message.headers(), "ce_type") == "lookout.alert.v1"
            events[(message.key() or b"").decode()].append(event_of(message.value()))
    return events


@pytest.mark.long
def test_killed_at_random_moments(own_kafka: KafkaServer, redis_url: str, tmp_path: Path) -> None:
    create_topics(own_kafka.bootstrap, 2)
    draw = random.Random(3)
    log = tmp_path / "alerts.log"
    producer = make_producer(own_kafka.bootstrap)  # idempotent: a retry would change the order of the windows
    producer.produce(WATCHES.name, to_json(watches_pb2.Watch(id="fall", version=1)), "fall")
    pending = verdicts()
    while pending:
        with service(own_kafka.bootstrap, redis_url, log):
            batch, pending = pending[:40], pending[40:]
            for verdict in batch:
                producer.produce(VERDICTS.name, to_json(verdict), verdict.camera)
                producer.poll(0.01)
            producer.flush()
            time.sleep(draw.uniform(0.5, 4.0))
    want = expected()
    with service(own_kafka.bootstrap, redis_url, log):
        total = sum(map(len, want.values()))
        assert read_alerts(own_kafka.bootstrap, total, 240) == want, log.read_text()[-4000:]
        producer.produce(WATCHES.name, None, "fall")  # the watch is removed: open incidents close
        producer.flush()
        after = read_alerts(own_kafka.bootstrap, total + still_open(want), 120)
        assert sum(map(len, after.values())) == total + still_open(want)
        assert still_open(after) == 0
