"""A compacted topic as a table in memory, the same for every partition of a stage."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from lookout.runtime import logs
from lookout.runtime.errors import StartupError, TransientError
from lookout.runtime.retry import CALL_S, NotReadyError, retry_until
from lookout.runtime.settings import ServiceSettings

#: newest values of a key that are kept
KEPT = 16


@dataclass(frozen=True, slots=True)
class View:
    """A moment of a table.

    `history`: of every key the values that stand in the topic, oldest first, back to its last deletion.
    `offset`: everything below it was read (of a one-partition topic; the sum of several).
    """

    history: Mapping[str, tuple[bytes, ...]]
    offset: int

    def newest(self, key: str) -> bytes | None:
        """The row as a table has it."""
        values = self.history.get(key)
        return values[-1] if values else None


class Table:
    """Follows a compacted topic on a thread of its own, read committed; a null value deletes the row.

    `start` returns once everything that stood in the topic at the call was read.
    """

    def __init__(self, settings: ServiceSettings, topic: str) -> None:
        self.topic = topic
        self._settings = settings
        self._log = logs.get("table").bind(table=topic)
        self._history: dict[str, tuple[bytes, ...]] = {}
        self._view = View(MappingProxyType({}), 0)
        self._next: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"table-{topic}", daemon=True)

    def start(self, timeout_s: float = 60.0) -> None:
        """Read the whole table, then follow it. Raises StartupError."""
        ends = self._ends()
        self._next = dict.fromkeys(ends, 0)
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(self._next[partition] < end for partition, end in ends.items()):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StartupError(
                        f"{self.topic} could not be read in {timeout_s:g} s: is Kafka reachable?"
                    )

    def view(self) -> View:
        """The table now. Cheap; never changes once given."""
        return self._view

    def at_least(self, offset: int, timeout_s: float = 10.0) -> View:
        """The table once it was read up to `offset` (from a checkpoint). Raises TransientError when it does
        not get there.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._view.offset < offset:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransientError(
                        f"{self.topic} is read to {self._view.offset}, a checkpoint needs {offset}"
                    )
            return self._view

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _ends(self) -> dict[int, int]:
        admin = AdminClient(self._settings.kafka(), logger=logs.client_logger("table-admin"))

        def ask() -> dict[int, int]:
            topic = admin.list_topics(self.topic, timeout=CALL_S).topics[self.topic]
            if topic.error is not None:
                raise NotReadyError(f"{topic.error.str()}; create it (docs/wire)")
            where = {TopicPartition(self.topic, each): OffsetSpec.latest() for each in topic.partitions}
            futures = admin.list_offsets(
                where, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=CALL_S
            )
            return {each.partition: int(future.result().offset) for each, future in futures.items()}

        return retry_until(ask, self._settings, f"topic {self.topic}")

    def _follow(self) -> None:
        consumer = Consumer(
            self._settings.kafka(
                **{
                    "group.id": f"table-{self._settings.instance}",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                }
            ),
            logger=logs.client_logger("table"),
        )
        try:
            consumer.assign([TopicPartition(self.topic, each, OFFSET_BEGINNING) for each in self._next])
            while not self._stop.is_set():
                message = consumer.poll(0.5)
                if message is not None:
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.fatal():
                raise KafkaException(error)
            self._log.warning("cannot follow the table", error=str(error))
            return
        assert partition is not None
        assert offset is not None
        with self._changed:
            if error is None:
                key = (message.key() or b"").decode("utf-8", "replace")
                value = message.value()
                if value is None:
                    self._history.pop(key, None)
                else:
                    self._history[key] = (*self._history.get(key, ()), value)[-KEPT:]
                self._next[partition] = offset + 1
            else:
                self._next[partition] = max(self._next[partition], offset)
            self._view = View(MappingProxyType(dict(self._history)), sum(self._next.values()))
            self._changed.notify_all()
