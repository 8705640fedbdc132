"""Prefill as a process on a real broker: killed, its directory wiped and stopped, one outcome each."""

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

import grpc
import pytest
import redis
from confluent_kafka import Consumer, Producer

from lookout.local import KafkaServer, RedisServer, create_topics, guarded
from lookout.models.digest import folder_digest
from lookout.runtime.store import Node
from lookout.runtime.tenants import RedisWork
from lookout.v1.watches_pb2 import Watch
from lookout.wire import DEFAULT_TENANT, TOKENS, VERDICTS, WATCHES, to_json
from lookout.wire.headers import text
from tests.eventually import eventually
from tests.prefill_world import embeddings, encoder, stream
from tests.tiny_models import checkpoint

pytestmark = pytest.mark.fleet

CAMERAS = [f"camera-{n}" for n in range(3)]
BLOCKS = 24
HOLES = (5, 6, 13)
WATCHES_ASKED = [
    Watch(id="fall", version=1, question="Is anyone lying?"),
    Watch(id="crowd", version=1, question="Are there many people?"),
]
Outcomes = dict[str, tuple[str, float]]


@contextmanager
def service(kafka: str, redis_url: str, replicas: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m lookout.services.prefill` as a process of its own."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")},
        "OMP_NUM_THREADS": "1",
        "LOOKOUT_BOOTSTRAP": kafka,
        "LOOKOUT_REDIS_URL": redis_url,
        "LOOKOUT_INSTANCE": "prefill-0",
        "LOOKOUT_HOST": "127.0.0.1",
        "LOOKOUT_MODEL_DIR": str(checkpoint("internvl")),
        "LOOKOUT_MODEL_DIGEST": folder_digest(checkpoint("internvl")),
        "LOOKOUT_WINDOW_S": "6",
        "LOOKOUT_STRIDE_S": "2",
        "LOOKOUT_TOKEN_REPLICAS": replicas,
        "LOOKOUT_REUSE": "false",  # answers of two runs are compared: no chain, so no difference between them
        "LOOKOUT_TRANSACTION_TIMEOUT_S": "5",
    }
    with log.open("ab") as sink:
        process = subprocess.Popen(
            guarded([sys.executable, "-m", "lookout.services.prefill"]),
            env=environment,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


class Reader:
    """Committed outcomes by id; an id that comes twice is an error."""

    def __init__(self, kafka: str) -> None:
        self.found: Outcomes = {}
        self.doubled: list[str] = []
        self.degraded = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([VERDICTS.name])

    def until(self, wanted: int, seconds: float) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end and len(self.found) < wanted:
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            verdict = json.loads(message.value() or b"")
            identity = verdict["id"]
            assert text(message.headers(), "ce_id") == identity
            if identity in self.found:
                self.doubled.append(identity)
            self.degraded += verdict.get("degraded", False)
            self.found[identity] = (verdict["outcome"], verdict.get("p_yes", 0.0))
        return len(self.found)

    def close(self) -> None:
        self._consumer.close()


def publish(kafka: str, node: Node | None) -> Iterator[None]:
    """Every camera's records, interleaved; half of the tensors are held, the others have to be made."""
    producer = Producer({"bootstrap.servers": kafka})
    for watch in WATCHES_ASKED:
        producer.produce(WATCHES.name, to_json(watch), watch.id)
    producer.flush()
    streams = [stream(camera, BLOCKS, holes=HOLES) for camera in CAMERAS]
    for records in zip(*streams, strict=True):
        for record in records:
            ref = record.block.embeddings
            if node is not None and ref.id and record.block.index % 2:
                node.store.put(ref, embeddings(ref))
            producer.produce(TOKENS.name, record.SerializeToString(), record.camera)
        producer.flush()
        yield


def expected() -> int:
    return len(CAMERAS) * (BLOCKS + 1) * len(WATCHES_ASKED)


def undisturbed(redis_url: str, log: Path) -> Outcomes:
    with KafkaServer() as kafka, encoder(redis_url, lease_s=1.0) as (node, address):
        create_topics(kafka.bootstrap, 2)
        for _ in publish(kafka.bootstrap, node):
            pass
        reader = Reader(kafka.bootstrap)
        with service(kafka.bootstrap, redis_url, address, log):
            reader.until(expected(), 300)
        reader.close()
        assert reader.doubled == []
        return reader.found


def started(log: Path, times: int) -> None:
    """Wait until the service has taken its partitions over for the `times`th time."""
    eventually(lambda: log.read_text().count("partition taken over") >= 2 * times)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_one_outcome_each_whatever_dies(own_redis: RedisServer, tmp_path: Path) -> None:
    want = undisturbed(own_redis.url, tmp_path / "quiet.log")
    kinds = [kind for kind, _ in want.values()]
    assert len(want) == expected()
    assert kinds.count("gap") == len(CAMERAS) * (len(HOLES) + 1) * len(WATCHES_ASKED)
    assert kinds.count("answered") == expected() - kinds.count("gap")

    draw, log, turns = random.Random(5), tmp_path / "prefill.log", 4
    with KafkaServer() as kafka, encoder(own_redis.url, lease_s=1.0) as (node, address):
        create_topics(kafka.bootstrap, 2)
        records, reader = publish(kafka.bootstrap, node), Reader(kafka.bootstrap)
        for turn in range(1, turns + 1):
            with service(kafka.bootstrap, own_redis.url, address, log):
                started(log, turn)
                for _ in range((BLOCKS + 1) // turns):
                    next(records)
                if turn == 2:
                    node.directory.client.flushall()
                if turn == turns:
                    own_redis.kill()
                    for _ in records:
                        pass
                    reader.until(expected(), 300)
                    assert reader.until(expected() + 1, 2) == expected(), log.read_text()[-4000:]
                else:
                    time.sleep(draw.uniform(0.05, 1.0))
        reader.close()
    assert reader.doubled == []
    assert reader.degraded > 0  # what came while Redis was dead says so
    assert {key: kind for key, (kind, _) in reader.found.items()} == {
        key: kind for key, (kind, _) in want.items()
    }
    for key, (_, p_yes) in want.items():
        assert reader.found[key][1] == pytest.approx(p_yes, abs=1e-5)


@pytest.mark.long
def test_answers_and_says_that_it_is_well(kafka: str, redis_url: str, tmp_path: Path) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    log = tmp_path / "prefill.log"
    create_topics(kafka, 2)
    with encoder(redis_url, lease_s=1.0) as (node, _):
        for _ in zip(range(3), publish(kafka, node), strict=False):
            pass
        with service(kafka, redis_url, "", log):
            started(log, 1)
            reader = Reader(kafka)
            reader.until(3 * len(CAMERAS) * len(WATCHES_ASKED), 150)
            reader.close()
            line = next(each for each in log.read_text().splitlines() if '"grpc"' in each)
            address = "127.0.0.1:" + json.loads(line)["grpc"].rpartition(":")[2]
            with grpc.insecure_channel(address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=120)
            # What it computed is told to the other instances, so that shares of tenants are fair over all.
            with redis.Redis.from_url(redis_url) as client:
                work = RedisWork(client)
                told = eventually(lambda: work.exchange({}))
            assert told.keys() == {DEFAULT_TENANT}
    ours = [kind for kind, _ in reader.found.values()]
    assert ours.count("answered") >= 3 * len(CAMERAS) * len(WATCHES_ASKED), log.read_text()[-4000:]
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
