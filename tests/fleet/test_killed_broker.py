"""A local broker that is killed while it ends transactions: each is whole or absent, and none stays open."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from lookout.local import KafkaServer
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long]

WRITERS, PARTITIONS, TOPIC = 8, 6, "marks"


class Writer:
    """Writes a number to every partition in one transaction, then the next, until it is told to leave off."""

    def __init__(self, bootstrap: str, name: str, first: int) -> None:
        self.name, self.committed, self.first = name, 0, first
        self._stopping = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0, "linger.ms": 0}
        )
        self._producer.init_transactions(30.0)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = self.first
        while not self._stopping.is_set():
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, f"{self.name}/{number}", partition=partition)
            if self._commit():
                self.committed = number
                number += 1

    def _commit(self) -> bool:
        while not self._stopping.is_set():
            try:
                self._producer.commit_transaction(0.5)
                return True
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        return False

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive()


def committed(bootstrap: str, end: list[int]) -> list[Counter[str]]:
    """What readers of committed records see, for each partition."""
    with Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    ) as consumer:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        seen: list[Counter[str]] = [Counter() for _ in range(PARTITIONS)]
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(30.0)
            assert message is not None, f"only partitions {sorted(ended)} could be read to {end}"
            if message.error() is not None:
                ended.add(message.partition() or 0)
                continue
            seen[message.partition() or 0][(message.value() or b"").decode()] += 1
    return seen


def ends(bootstrap: str, level: IsolationLevel) -> list[int]:
    """The offset behind the last record, for each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    answers = admin.list_offsets(asked, isolation_level=level)
    return [answers[each].result().offset for each in asked]


def all_closed(bootstrap: str) -> bool:
    """Whether no partition has a transaction that is still open."""
    try:
        stable = ends(bootstrap, IsolationLevel.READ_COMMITTED)
        return stable == ends(bootstrap, IsolationLevel.READ_UNCOMMITTED)
    except KafkaException:
        return False


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.long)])
def test_transactions_are_whole(own_kafka: KafkaServer, kills: int) -> None:
    bootstrap = own_kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    told: set[str] = set()
    for round_ in range(kills):
        writers = [Writer(bootstrap, f"writer-{n}", round_ * 1_000_000 + 1) for n in range(WRITERS)]
        eventually(lambda writers=writers: all(each.committed >= each.first + 2 for each in writers))
        own_kafka.kill()
        for each in writers:
            each.leave()
            told |= {f"{each.name}/{number}" for number in range(each.first, each.committed + 1)}
        own_kafka.start()
        # Without this step marks are skipped, but lost for good too seldom for what follows to notice.
        assert "Fencing broker" in (own_kafka.folder / "fence.log").read_text()
    for n in range(WRITERS):  # what was open is aborted
        Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writer-{n}"}).init_transactions(30.0)
    eventually(lambda: all_closed(bootstrap))
    seen = committed(bootstrap, ends(bootstrap, IsolationLevel.READ_COMMITTED))
    assert all(each == seen[0] for each in seen)
    assert set(seen[0].values()) == {1}
    assert told <= set(seen[0])
