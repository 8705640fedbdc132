"""Keeps the content of a compacted topic as a table in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from confluent_kafka import KafkaException, Message

from lookout.errors import StartupError, TransientError
from lookout.runtime.observe import LimitedLog, logs
from lookout.runtime.observe.health import Health
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.retry import CALL_S, NotReadyError, retry_until
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.supervision import Supervisor
from lookout.runtime.worker.topic_reader import BEGINNING, End, TopicReader
from lookout.text import clean
from lookout.wire import key_text

#: default number of each key's newest values to keep, because earlier versions apply until a new version
#: begins
KEPT = 16
#: maximum number of deleted keys whose values are kept
PAST_KEYS = 10_000
#: maximum number of unusable rows that are listed by key; all are counted
NAMED = 100
_FIRST = 5
FOLLOW_WAIT_MS = 500
#: seconds after which a record that needs an offset of a table becomes a dead letter
REACH_S = 60.0

#: returns why a row, given its key and value, is unusable; None if it is usable
Check = Callable[[str, bytes], str | None]


class ShorterTopicError(TransientError):
    """A record refers to an offset that the topic does not have, because the topic was recreated or the
    offset was invented."""


@dataclass(frozen=True, slots=True)
class UnusableRows:
    """The number of rows whose newest value is unusable, and the reasons for up to `NAMED` of them, by
    key."""

    rows: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PastRow:
    """A value and its offset in the topic."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot of a table.

    Attributes:
        history: The kept values of each key since its last deletion, oldest first.
        offset: Offset up to which the topic was read; for several partitions, the sum of their offsets.
    """

    history: Mapping[str, tuple[bytes, ...]]
    offset: int

    def newest(self, key: str) -> bytes | None:
        """Return the newest value of a key; None if there is none."""
        values = self.history.get(key)
        return values[-1] if values else None


@dataclass(slots=True)
class _Rows:
    """The rows read from a topic.

    Attributes:
        history: The kept values of each key since its last deletion.
        past: The newest values of each key, including deleted keys.
        left_out: Why the newest value of a key is unusable, by key.
    """

    history: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    past: dict[str, tuple[PastRow, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Table:
    """Follows the committed records of a compacted topic on its own thread. A null value deletes a row.

    `start` returns when everything that was in the topic at the call has been read. An unusable value is
    ignored and reported by `left_out`; the key's earlier values remain. If the topic is deleted and
    recreated, it is read from its beginning, and its rows then replace the previous ones.

    Args:
        settings: How Kafka is reached.
        topic: Name of the topic.
        check: Returns why a value is unusable, or None if it is usable. None: every value is usable.
        limit: Maximum number of keys; values of further keys are unusable. None: any number.
        kept: Number of each key's newest values to keep.
        deletion_fault: Why rows of this table cannot be deleted; a null value is then unusable for this
            reason. Empty: a null value deletes its row.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        topic: str,
        *,
        check: Check | None = None,
        limit: int | None = None,
        kept: int = KEPT,
        deletion_fault: str = "",
    ) -> None:
        self.topic = topic
        self._deletion_fault = deletion_fault
        self._kept = kept
        self._check = check
        self._limit = limit
        self._read_once = False  # whether everything that was in the topic at the start has been read
        self._settings = settings
        self._log = logs.get("table").bind(table=topic)
        self._limited = LimitedLog(self._log)
        self._rows = _Rows()
        self._served = (
            self._rows
        )  # the rows that readers get; the previous ones while a recreated topic is read
        self._unread: set[int] = set()  # partitions that are not read to their end yet
        self._view: View | None = None  # created on request
        self._next: dict[int, int] = {}
        # Keys that changed since the last call of `changes`; None: it was not called yet.
        self._unseen: set[str] | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        # The reader follows the topic, so Kafka may hold each fetch until there is a record.
        options = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": FOLLOW_WAIT_MS}
        self._reader = TopicReader(settings, "table", options=options)
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float = 60.0, supervisor: Supervisor | None = None) -> None:
        """Read the whole table, then follow it.

        Raises:
            StartupError: The topic is missing or cannot be read in time.
        """
        # Ask before the thread reads, so that rows written later do not delay the start.
        ends = self._ends()
        self._next = dict.fromkeys(ends, 0)
        self._thread = (supervisor or Supervisor()).start(f"table-{self.topic}", self._follow)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(self._next[partition] < end for partition, end in ends.items()):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StartupError(f"{self.topic} could not be read within {timeout_s:g} s: check Kafka")
            self._read_once = True
            self._tell_left_out()

    def view(self) -> View:
        """Return an immutable snapshot of the table. The table is copied only at the first call after a
        change."""
        with self._changed:
            if self._view is None:
                self._view = View(MappingProxyType(dict(self._served.history)), self._offset())
            return self._view

    def newest(self, key: str) -> bytes | None:
        """Return the newest usable value of a key; None if the row was deleted."""
        with self._changed:
            values = self._served.history.get(key)
            return values[-1] if values else None

    def standing(self, key: str) -> bytes | None:
        """Return the newest value of a key; None if the value is unusable or the row was deleted."""
        with self._changed:
            if key in self._served.left_out or not (values := self._served.history.get(key)):
                return None
            return values[-1]

    def changes(self) -> set[str]:
        """Return the keys whose rows have changed since the last call. Only one reader may use it.

        The first call returns all keys, including those of deleted rows.
        """
        with self._changed:
            keys = set(self._served.past) if self._unseen is None else self._unseen
            self._unseen = set()
            return keys

    def at_least(self, offset: int, timeout_s: float = 10.0) -> View:
        """Return the table as soon as it has been read up to `offset`, for example from a checkpoint.

        If Kafka has no such offset, because the topic was recreated, the current table is returned.

        Raises:
            TransientError: The offset is not reached in time.
        """
        try:
            self.reach(offset, timeout_s)
        except ShorterTopicError as error:
            self._log.warning(
                "the topic was recreated after a checkpoint was written; using its current rows",
                why=str(error),
            )
        return self.view()

    def reach(self, offset: int, timeout_s: float = 10.0) -> None:
        """Wait until the table is read up to `offset`.

        Raises:
            ShorterTopicError: Kafka has no such offset.
            TransientError: The offset is not reached in time.
        """
        if self._reaches(offset, timeout_s):
            return
        # Limit the retries, because a record may refer to an offset that is never reached. Outages of Kafka
        # do not count.
        why = f"a record needs {self.topic} up to offset {offset}, but it was read up to {self._offset()}; "
        why += "the topic may have been restored or recreated, which changes its offsets"
        kind = ShorterTopicError if self._is_shorter(offset) else TransientError
        raise kind(why, give_up_s=REACH_S)

    def _reaches(self, offset: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._offset() < offset:
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
            return True

    def _is_shorter(self, offset: int) -> bool:
        """Whether Kafka's topic ends before this offset."""
        try:
            return sum(self._reader.ends(self.topic, list(self._next), CALL_S).values()) < offset
        except KafkaException:
            return False

    def past(self, key: str) -> tuple[PastRow, ...]:
        """Return the newest values that a key had, oldest first, even if it has been deleted."""
        with self._changed:
            return self._served.past.get(key, ())

    def left_out(self) -> UnusableRows:
        """Return the number of rows whose newest value is unusable, and reasons."""
        with self._changed:
            named = dict(islice(self._served.left_out.items(), NAMED))
            return UnusableRows(len(self._served.left_out), MappingProxyType(named))

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
                raise NotReadyError(
                    f"{error.args[0].str()}; create it as described in docs/wire.md"
                ) from error
            return self._reader.ends(self.topic, partitions, CALL_S)

        return retry_until(ask, self._settings, f"topic {self.topic}")

    def _follow(self) -> None:
        try:
            self._reader.read_from(self.topic, dict.fromkeys(self._next, BEGINNING))
            while not self._stop.is_set():
                try:
                    message = self._reader.next(0.5)
                except KafkaException as error:
                    if error.args[0].fatal():
                        raise
                    self._log.warning("cannot read new records of the table", error=str(error.args[0]))
                    continue
                if message is not None:
                    self._take(message)
        finally:
            self._reader.close()

    def _take(self, message: Message | End) -> None:
        if isinstance(message, End):
            number, offset = message.partition, message.offset
        else:
            number, offset = message.partition() or 0, message.offset() or 0
        with self._changed:
            if offset < self._next[number]:
                self._begin_again(number)
                return
            if isinstance(message, End):
                self._next[number] = offset
                self._unread.discard(number)
            else:
                self._put(message)
                self._next[number] = offset + 1
            if not self._unread:
                self._served = self._rows
            self._view = None
            self._changed.notify_all()

    def _begin_again(self, number: int) -> None:
        """Read everything again, because offsets have restarted, which means that the topic was recreated."""
        self._log.warning("the topic was recreated; reading it from its beginning", partition=number)
        if self._unseen is not None:
            self._unseen.update(self._rows.history)
        self._rows, self._unread = _Rows(), set(self._next)
        self._next = dict.fromkeys(self._next, 0)
        self._reader.read_from(self.topic, dict.fromkeys(self._next, BEGINNING))

    def _put(self, message: Message) -> None:
        rows, key, value = self._rows, key_text(message.key()), message.value()
        # Only the newest value of a key counts, so this one replaces the entry of the previous one.
        rows.left_out.pop(key, None)
        if self._unseen is not None:
            self._unseen.add(key)
        if value is None:
            if self._deletion_fault:
                self._ignore(key, self._deletion_fault)
            else:
                rows.history.pop(key, None)
            return
        if (why := self._fault(key, value)) is not None:
            self._ignore(key, why)
            return
        rows.history[key] = (*rows.history.get(key, ()), value)[-self._kept :]
        row = PastRow(message.offset() or 0, value)
        rows.past[key] = (*rows.past.get(key, ()), row)[-self._kept :]
        if len(rows.past) > len(rows.history) + PAST_KEYS:
            del rows.past[next(key for key in rows.past if key not in rows.history)]

    def _ignore(self, key: str, why: str) -> None:
        self._rows.left_out[key] = why
        if self._read_once:
            self._limited.error(self.topic, "a row is unusable and is ignored", key=key, reason=why)

    def _tell_left_out(self) -> None:
        """Log one line about all unusable rows at the start, because they are the same at every start."""
        left_out = self._rows.left_out
        if left_out:
            first = {clean(key, 100): clean(why, 200) for key, why in islice(left_out.items(), _FIRST)}
            self._log.error("rows are unusable and are ignored", rows=len(left_out), first=first)

    def _fault(self, key: str, value: bytes) -> str | None:
        rows = self._rows.history
        if self._limit is not None and key not in rows and len(rows) >= self._limit:
            return f"the topic already has {self._limit} rows, which is the limit"
        return None if self._check is None else self._check(key, value)


def tell_left_out(table: Table, health: Health, metrics: Metrics) -> None:
    """List a table's unusable rows in /readyz, and count them in `lookout_left_out_rows`."""

    def row_reasons() -> dict[str, object] | None:
        left_out = table.left_out()
        if not left_out.rows:
            return None
        named = {clean(key, 200): clean(why, 300) for key, why in left_out.reasons.items()}
        return {"rows": left_out.rows, "reasons": named}

    health.note(f"left_out {table.topic}", row_reasons)
    metrics.left_out.labels(metrics.stage, table.topic).set_function(lambda: table.left_out().rows)
