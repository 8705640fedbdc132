"""Tools of the worker's tests: topics, a publisher, a reader of committed records, workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lookout.local import guarded
from lookout.runtime.observe import Health, Metrics
from lookout.runtime.worker import Worker
from tests.changed_settings import changed_settings
from tests.fleet.toy import Toy, ToySettings

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4


class Bench:
    """One toy stage's topics on a broker.

    Close it: the destructor of a consumer that was not closed was seen to wait for ever for a broker that is
    gone (librdkafka's issue 4519), and the garbage collector may call it in any later test.
    """

    def __init__(self, bootstrap: str, prefix: str, partitions: int = PARTITIONS) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.partitions = partitions
        self._counts: Counter[str] = Counter()  # outputs that the follower has read
        self._follower: Consumer | None = None
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [
            NewTopic(f"{prefix}{name}", partitions, 1, config=config)
            for name, config in (
                ("in", {}),
                ("out", {}),
                ("dlq", {}),
                ("state", {"cleanup.policy": "compact"}),
            )
        ]
        for future in admin.create_topics(topics, operation_timeout=30.0).values():
            future.result()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 1,
                "enable.idempotence": True,
                "message.max.bytes": 17 << 20,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._follower is not None:
            self._follower.close()
        self._producer.close()

    def settings(self, instance: str = "toy-0", **more: Any) -> ToySettings:
        values: dict[str, Any] = {
            "mode": "local",
            "bootstrap": self.bootstrap,
            "toy_prefix": self.prefix,
            "group": f"{self.prefix}group",
            "instance": instance,
            "session_timeout_s": 3.0,
            "transaction_timeout_s": 10.0,
        }
        kind, fields = changed_settings(ToySettings, **{**values, **more})
        return kind(**fields)

    def send(
        self,
        camera: str | None,
        n: int = 1,
        partition: int | None = None,
        headers: dict[str, bytes] | None = None,
        **more: Any,
    ) -> None:
        where: dict[str, Any] = {"partition": partition} if partition is not None else {}
        if headers:
            where["headers"] = headers
        self._producer.produce(f"{self.prefix}in", json.dumps({"n": n, **more}).encode(), key=camera, **where)

    def flush(self) -> None:
        assert self._producer.flush(240.0) == 0

    def read(self, topic: str) -> list[Message]:
        """Everything committed in a topic now, in partition order."""
        messages: list[Message] = []
        complete: set[int] = set()
        with self._reader(topic) as consumer:
            while len(complete) < self.partitions:
                message = consumer.poll(240.0)
                assert message is not None
                if message.error() is None:
                    messages.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    complete.add(message.partition())
        return messages

    def _reader(self, topic: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        name = f"{self.prefix}{topic}"
        consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in range(self.partitions)])
        return consumer

    def outputs(self) -> dict[str, list[dict[str, Any]]]:
        """Committed outputs of each camera, in order."""
        outputs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for message in self.read("out"):
            outputs[message.key().decode()].append(json.loads(message.value()))
        return outputs

    def counted(self, cameras: list[str], number: int) -> bool:
        """Whether so many outputs of every camera are committed.

        Tests ask again and again: one reader follows the topic, since a new one for every question costs the
        broker more than the workers do.
        """
        if self._follower is None:
            self._follower = self._reader("out")
        for message in self._follower.consume(1000, timeout=0.1):
            if message.error() is None:
                self._counts[message.key().decode()] += 1
        return all(self._counts[camera] >= number for camera in cameras)

    def assert_counted(self, cameras: list[str], records: int) -> None:
        """Every record counted once, in order, with the state it should have met."""
        numbers = range(1, records + 1)
        totals = [n * (n + 1) // 2 for n in numbers]
        outputs = self.outputs()
        for camera in cameras:
            values = outputs[camera]
            assert [value.get("n") for value in values] == list(numbers), values
            assert [value["count"] for value in values] == list(numbers), camera
            assert [value["total"] for value in values] == totals, camera


class Threaded:
    """A worker on a thread of the test's process."""

    def __init__(
        self,
        settings: ToySettings,
        shared: dict[str, str] | None = None,
        digest: str = "toy-1",
        load_s: float = 0.0,
    ) -> None:
        self.handler = Toy(settings.out)
        self.handler.config_digest = digest
        if shared is not None:
            self.handler.shared_settings = shared
        self.metrics = Metrics("toy")
        self.health = Health()
        self.worker = Worker(
            settings,
            "toy",
            settings.topics,
            self.handler,
            metrics=self.metrics,
            health=self.health,
            load_s=load_s,
        )
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            traceback.print_exc()  # for a test that waits in vain
            self.error = error

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"lookout_{name}", {"stage": "toy", **labels}) or 0.0

    def given_up(self) -> float:
        """Transactions that did not commit, or nobody knows."""
        return sum(self.count("transactions_total", outcome=outcome) for outcome in ("aborted", "unknown"))

    def stop(self) -> None:
        self.worker.stop()
        self.thread.join(240.0)
        assert not self.thread.is_alive()
        self.handler.adder.close()


@contextmanager
def running(settings: ToySettings, digest: str = "toy-1") -> Iterator[Threaded]:
    worker = Threaded(settings, digest=digest)
    try:
        yield worker
    finally:
        worker.stop()


def process(settings: ToySettings, log: Path, **more: str) -> subprocess.Popen[bytes]:
    """The same as a process of its own; `more` are variables of its environment."""
    names = (
        "mode",
        "bootstrap",
        "toy_prefix",
        "group",
        "instance",
        "session_timeout_s",
        "transaction_timeout_s",
        "work_limit_s",
    )
    environ = {f"LOOKOUT_{name.upper()}": str(getattr(settings, name)) for name in names}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LOOKOUT_")}
    with log.open("ab") as out:
        return subprocess.Popen(
            guarded([sys.executable, "-m", "tests.fleet.toy"]),
            cwd=ROOT,
            env={**clean, **environ, **more},
            stdout=out,
            stderr=out,
        )
