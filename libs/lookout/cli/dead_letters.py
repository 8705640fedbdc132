"""Reports records that a running fleet could not process, as it happens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Message

from lookout.cli.connect import Outage
from lookout.cli.formats import count_text
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.tables import FOLLOW_WAIT_MS
from lookout.runtime.worker.topic_reader import END, ClientOptions, TopicReader
from lookout.text import clean
from lookout.wire import PIPELINE, RECORDING_FLOWS, headers

_LIMIT = 500  # maximum number of records read per call
_AGAIN_S = 30.0  # seconds until the same problem of a camera is reported again

Trouble = tuple[str, str, str]  # topic, camera, reason
_OF_JOBS = frozenset(flow.dead_letters.name for flow in RECORDING_FLOWS)


class DeadLetterNews:
    """Follows the dead-letter topics.

    Args:
        options: Options of a Kafka client: the address and security settings.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, options: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._outage = clock, Outage(options)
        access = ClientOptions({**options, "error_cb": self._outage.failed})
        self._reader = TopicReader(access, "lookout-up", options={"fetch.wait.max.ms": FOLLOW_WAIT_MS})
        topics = [flow.dead_letters.name for flow in (*PIPELINE.values(), *RECORDING_FLOWS)]
        self._reader.follow(dict.fromkeys(topics, END), {}, 10.0)
        self._counts: Counter[Trouble] = Counter()
        self._details: dict[Trouble, str] = {}
        self._reported: dict[Trouble, float] = {}

    def news(self) -> list[str]:
        """Return a sentence for each kind of problem that is new or was not reported for 30 s.

        Another sentence says if Kafka was lost, or is back. The call returns at once, unless a connection has
        failed.
        """
        for _ in range(_LIMIT):
            message = self._reader.record(0.0)
            if message is None:
                break
            self._count(message)
        now = self._clock()
        due = [key for key in self._counts if now - self._reported.get(key, -_AGAIN_S) >= _AGAIN_S]
        outage = self._outage.news()
        return [*([outage] if outage else []), *(self._sentence(key, now) for key in sorted(due))]

    def _count(self, message: Message) -> None:
        key, pairs = message.key() or b"", record_of(message).headers
        camera = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        reason = headers.text(pairs, headers.REASON) or "unknown"
        trouble = (message.topic() or "", camera, reason)
        # Only in quota letters, because in other letters the record's sender set the header and could invent
        # a number.
        records = headers.number(pairs, headers.RECORDS) if reason == headers.QUOTA else None
        self._counts[trouble] += records or 1
        self._details[trouble] = headers.text(pairs, headers.DETAIL) or ""

    def _sentence(self, trouble: Trouble, now: float) -> str:
        topic, camera, reason = trouble
        count, detail = self._counts.pop(trouble), self._details.pop(trouble)
        self._reported[trouble] = now
        why = f"({clean(reason, 60)})" + (f": {clean(detail)}" if detail else "")
        kind = "job" if topic in _OF_JOBS else "camera"
        return f"{kind} {clean(camera, 200)}: {count_text(count, 'record')} went to {topic} {why}"

    def close(self) -> None:
        """Stop watching."""
        self._reader.close()
