"""What another group has read: a store keeps every tensor that the next stage has not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lookout.runtime import logs
from lookout.runtime.settings import ServiceSettings

ASK_S = 5.0


class Downstream:
    """Committed offsets of `group` in `topic`, asked for every `every_s` on a thread of its own.

    `changed` is called there with {partition: next unread offset} after each answer. While Kafka is away the
    last answer stands: nothing is thought read that may not be.

    Asked by a consumer that never joins: the admin client's call for it dereferences a missing group when the
    broker answers NOT_COORDINATOR (librdkafka 2.16, seen as a segmentation fault while a broker settles).
    """

    def __init__(
        self,
        settings: ServiceSettings,
        group: str,
        topic: str,
        changed: Callable[[Mapping[int, int]], None] | None = None,
        every_s: float = 1.0,
    ) -> None:
        self._consumer = Consumer(
            settings.kafka(**{"group.id": group, "enable.auto.commit": False}),
            logger=logs.client_logger("offsets"),
        )
        self._group, self._topic = group, topic
        self._changed = changed
        self._every_s = every_s
        self._offsets: Mapping[int, int] = {}
        self._stop = threading.Event()
        self._log = logs.get("offsets")
        self._thread = threading.Thread(target=self._follow, name=f"offsets-{group}", daemon=True)

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(ASK_S)
        if not self._thread.is_alive():
            self._consumer.close()

    def committed(self) -> Mapping[int, int]:
        """The last answer; a partition that was never committed is absent."""
        return self._offsets

    def ask(self) -> Mapping[int, int]:
        """Ask now. Raises KafkaException."""
        topic = self._consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        found = self._consumer.committed(
            [TopicPartition(self._topic, partition) for partition in topic.partitions], timeout=ASK_S
        )
        self._offsets = {each.partition: each.offset for each in found if not each.error and each.offset >= 0}
        return self._offsets

    def _follow(self) -> None:
        said = False
        while not self._stop.wait(self._every_s):
            try:
                answer = self.ask()
                said = False
            except KafkaException as error:
                if not said:
                    self._log.warning("cannot see what was read", group=self._group, error=str(error.args[0]))
                said = True
                continue
            if self._changed is not None:
                self._changed(answer)
