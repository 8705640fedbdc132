"""A fake of librdkafka's own: a broker in this process that keeps records and serves them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def mock_kafka(records: Iterable[tuple[str, int, str | None, bytes | None]]) -> Iterator[str]:
    """The address of a broker with some records: topic, partition, key and value.

    A topic has four partitions; offsets begin at 0.
    """
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    address = f"{broker.host}:{broker.port}"
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for topic, partition, key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0
    yield address
    del producer, cluster
