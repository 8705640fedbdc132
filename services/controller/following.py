"""Follows topics while this process leads, through outages of Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException, Message, TopicPartition

from lookout.runtime.kafka_clients import Consumer
from lookout.runtime.observe import logs
from lookout.runtime.worker import ServiceSettings, polling
from lookout.wire import prefixed

_MESSAGES = 500  # most messages of one poll
_SESSION_MS = 10_000  # how long a process waits for the partitions of a killed one with its name


class Follower:
    """Reads committed records of topics on a thread of its own, also from partitions that are added.

    While Kafka is away, it waits.

    Args:
        settings: How Kafka is reached.
        name: Name of the thread and, with the instance's name, of the group.
        begins: The offset at which a topic's partitions begin, by topic (`OFFSET_BEGINNING`, `OFFSET_END`).
        take: Called with every record on that thread.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        name: str,
        begins: Mapping[str, int],
        take: Callable[[Message], object],
    ) -> None:
        self._settings, self._name, self._begins, self._take = settings, name, begins, take
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stopped.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        options = {
            "group.id": prefixed(f"{self._name}-{self._settings.instance}"),
            "partition.assignment.strategy": "cooperative-sticky",  # places stay where partitions are added
            "session.timeout.ms": _SESSION_MS,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": polling.METADATA_MS,
        }
        with Consumer(self._settings.kafka(**options), logger=logs.client_logger(self._name)) as consumer:
            consumer.subscribe(list(self._begins), on_assign=self._begin)
            while not self._stopped.is_set():
                for message in consumer.consume(_MESSAGES, 0.5):
                    error = message.error()
                    if error is None:
                        self._take(message)
                    elif error.fatal():
                        raise KafkaException(error)

    def _begin(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(
            [TopicPartition(place.topic, place.partition, self._begins[place.topic]) for place in places]
        )
