"""A compacted topic as a table in memory, the same for every partition of a stage."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from confluent_kafka import KafkaException, Message

from lookout.runtime import logs
from lookout.runtime.errors import StartupError, TransientError
from lookout.runtime.retry import CALL_S, NotReadyError, retry_until
from lookout.runtime.settings import ServiceSettings
from lookout.runtime.supervision import Supervisor
from lookout.runtime.topic_reader import BEGINNING, End, TopicReader

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
        self._view: View | None = None  # made when asked for
        self._next: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._reader = TopicReader(settings, "table", options={"auto.offset.reset": "earliest"})
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float = 60.0, supervisor: Supervisor | None = None) -> None:
        """Read the whole table, then follow it.

        Raises:
            StartupError: What the service needs is missing or wrong; the message names it.
        """
        ends = self._ends()
        self._next = dict.fromkeys(ends, 0)
        self._thread = (supervisor or Supervisor()).start(f"table-{self.topic}", self._follow)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(self._next[partition] < end for partition, end in ends.items()):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StartupError(f"{self.topic} could not be read within {timeout_s:g} s: check Kafka")

    def view(self) -> View:
        """The table now; never changes once given. Copied only when it is asked for after a change."""
        with self._changed:
            if self._view is None:
                self._view = View(MappingProxyType(dict(self._history)), self._offset())
            return self._view

    def at_least(self, offset: int, timeout_s: float = 10.0) -> View:
        """The table once it was read up to `offset` (from a checkpoint).

        Raises:
            TransientError: It does not get there.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._offset() < offset:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransientError(
                        f"{self.topic} is read to {self._offset()}, a checkpoint needs {offset}"
                    )
        return self.view()

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _offset(self) -> int:
        return sum(self._next.values())

    def _ends(self) -> dict[int, int]:
        def ask() -> dict[int, int]:
            try:
                partitions = self._reader.partitions(self.topic, CALL_S)
            except KafkaException as error:
                raise NotReadyError(f"{error.args[0].str()}; create it as docs/wire.md says") from error
            return self._reader.ends(self.topic, partitions, CALL_S)

        return retry_until(ask, self._settings, f"topic {self.topic}")

    def _follow(self) -> None:
        try:
            self._reader.read_from(self.topic, dict.fromkeys(self._next, BEGINNING))
            while not self._stop.is_set():
                try:
                    found = self._reader.next(0.5)
                except KafkaException as error:
                    if error.args[0].fatal():
                        raise
                    self._log.warning("cannot read new records of the table", error=str(error.args[0]))
                    continue
                if found is not None:
                    self._take(found)
        finally:
            self._reader.close()

    def _take(self, found: Message | End) -> None:
        with self._changed:
            if isinstance(found, End):
                self._next[found.partition] = max(self._next[found.partition], found.offset)
            else:
                self._put(found)
                self._next[found.partition() or 0] = (found.offset() or 0) + 1
            self._view = None
            self._changed.notify_all()

    def _put(self, message: Message) -> None:
        key = (message.key() or b"").decode("utf-8", "replace")
        value = message.value()
        if value is None:
            self._history.pop(key, None)
        else:
            self._history[key] = (*self._history.get(key, ()), value)[-KEPT:]
