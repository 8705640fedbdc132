"""A fifth service, written from the recipe: a sink beside alerts, with a state of its own, under kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from confluent_kafka import KafkaException, Producer
from google.protobuf.struct_pb2 import Struct

from lookout.local import KafkaServer, create_topics, free_ports, guarded
from lookout.runtime.worker import Downstream, ServiceSettings, load_settings
from lookout.runtime.worker.topic_reader import BEGINNING, End, TopicReader
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, Flow, to_json
from tests.eventually import eventually

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).parents[2]
PARTITIONS, CAMERAS, VERDICTS_EACH, KILLS = 6, 8, 250, 4
TALLY = Flow("tally", VERDICTS)


class Service:
    """The example as a process."""

    def __init__(self, bootstrap: str, redis_url: str, log: Path) -> None:
        self._log = log
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")}
        self._environ |= {
            "LOOKOUT_MODE": "local",
            "LOOKOUT_BOOTSTRAP": bootstrap,
            "LOOKOUT_REDIS_URL": redis_url,
            "LOOKOUT_INSTANCE": "tally-0",
            "LOOKOUT_SESSION_TIMEOUT_S": "3",
            "LOOKOUT_TRANSACTION_TIMEOUT_S": "10",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        command = guarded([sys.executable, "examples/service.py", *arguments])
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**self._environ, **more}, stdout=out, stderr=out
            )
        return self.process

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(240)


@pytest.fixture
def service(own_kafka: KafkaServer, redis_url: str, tmp_path: Path) -> Iterator[Service]:
    service = Service(own_kafka.bootstrap, redis_url, tmp_path / "tally.log")
    create_topics(own_kafka.bootstrap, PARTITIONS, topics=[VERDICTS])
    assert service.start("--create-topics").wait(240) == 0, (tmp_path / "tally.log").read_text()
    yield service
    service.stop()


def publish(bootstrap: str) -> tuple[dict[str, tuple[int, int]], int]:
    """Verdicts of some cameras, a few records that are none; (answered, yes) by camera, and the bad ones."""
    draw = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    expected: dict[str, tuple[int, int]] = {}
    bad = 0
    for number in range(CAMERAS):
        camera, partition, yes = f"cam-{number}", number % PARTITIONS, 0
        for window in range(VERDICTS_EACH):
            p_yes = draw.random()
            yes += p_yes >= 0.5
            verdict = Verdict(camera=camera, epoch=1, window=window, watch="fall", p_yes=p_yes)
            verdict.outcome = Verdict.OUTCOME_ANSWERED
            producer.produce(VERDICTS.name, to_json(verdict), key=camera, partition=partition)
            if draw.random() < 0.02:
                bad += 1
                producer.produce(VERDICTS.name, b"{", key=camera, partition=partition)
        expected[camera] = (VERDICTS_EACH, yes)
    assert producer.flush(60.0) == 0
    return expected, bad


def records(settings: ServiceSettings, topic: str) -> list[tuple[bytes, bytes]]:
    """All committed records of a topic: key and value."""
    reader = TopicReader(settings, "test")
    partitions = reader.partitions(topic, 30.0)
    reader.read_from(topic, dict.fromkeys(partitions, BEGINNING))
    unread, read = set(partitions), []
    while unread:
        message = reader.next(30.0)
        assert message is not None
        if isinstance(message, End):
            unread.discard(message.partition)
        else:
            read.append((message.key() or b"", message.value() or b""))
    reader.close()
    return read


def read(progress: Downstream) -> int:
    """Records that the service has read for good.

    Kafka does not tell while a transaction over them is open, and a service that was killed leaves one open
    until its time is over.
    """

    def offsets() -> list[int]:
        with suppress(KafkaException):
            return [*progress.ask().values(), 0]  # a list that is true once there is an answer
        return []

    return sum(eventually(offsets))


@pytest.mark.long
def test_a_service_of_ones_own_counts_once_whatever_dies(own_kafka: KafkaServer, service: Service) -> None:
    expected, bad = publish(own_kafka.bootstrap)
    settings = load_settings(ServiceSettings, {}, mode="local", bootstrap=own_kafka.bootstrap)
    progress = Downstream(settings, TALLY.name, TALLY.source.name)
    total = sum(answered for answered, _ in expected.values()) + bad
    for kill in range(KILLS):
        process = service.start()
        before = read(progress)
        wanted = min(total - 1, before + total // (2 * KILLS))
        eventually(lambda wanted=wanted: read(progress) >= wanted)
        process.kill()
        process.wait(240)
        assert kill or read(progress) > 0
    service.start()
    eventually(lambda: read(progress) >= total)
    progress.stop()

    counts: dict[str, tuple[int, int]] = {}
    for key, value in records(settings, TALLY.state.name):
        message = Struct()
        assert Checkpoint.FromString(value).own.Unpack(message)
        counts[key.decode()] = int(message["answered"]), int(message["yes"])
    assert counts == expected
    letters = Counter(value for _, value in records(settings, TALLY.dead_letters.name))
    assert letters == {b"{": bad}


@pytest.mark.long
def test_it_answers_calls_and_names_a_wrong_setting(
    own_kafka: KafkaServer, service: Service, tmp_path: Path
) -> None:
    expected, _ = publish(own_kafka.bootstrap)
    (port,) = free_ports(1)
    service.start(LOOKOUT_GRPC_PORT=str(port))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/example.Tally/Get", Struct.SerializeToString, Struct.FromString)

        def counted() -> bool:
            try:
                answer = call(Struct(), timeout=30)
            except grpc.RpcError:
                return False
            return {camera: tuple(map(int, answer[camera])) for camera in answer} == expected

        eventually(counted)
    service.stop()
    assert service.process is not None
    assert service.process.returncode == 0
    assert service.start(LOOKOUT_TALLY_THRESHOLD="2").wait(240) == 2
    assert "LOOKOUT_TALLY_THRESHOLD" in (tmp_path / "tally.log").read_text()
