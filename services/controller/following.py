"""Follows topics while this process leads, across Kafka outages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from confluent_kafka import KafkaException, Message

from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.retry import CALL_S
from lookout.runtime.worker.tables import FOLLOW_WAIT_MS
from lookout.runtime.worker.topic_reader import TopicReader


class Follower:
    """Follows topics on a separate thread, as `TopicReader.follow` does, and waits while Kafka is
    unavailable.

    Args:
        settings: How Kafka is reached.
        name: Name of the thread; with the instance's name, also of the consumer group.
        begins: By topic, the offset at which to start reading its partitions (BEGINNING, END).
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
        options = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": FOLLOW_WAIT_MS}
        with closing(TopicReader(self._settings, self._name, options=options)) as reader:
            while not self._stopped.is_set() and not self._begin(reader):
                pass
            while not self._stopped.is_set():
                if (message := reader.record(0.5)) is not None:
                    self._take(message)

    def _begin(self, reader: TopicReader) -> bool:
        """Start reading if Kafka answers; return whether to stop trying, because that worked or `stop` was
        called.
        """
        try:
            reader.follow(self._begins, {}, CALL_S)
        except KafkaException:
            return self._stopped.wait(0.5)
        return True
