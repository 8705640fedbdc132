"""Reads records again, given their offsets, such as the records of the open window after a takeover."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from operator import methodcaller
from typing import Final

from confluent_kafka import KafkaException, Message

from lookout.errors import RecordsGoneError, TransientError
from lookout.runtime.worker.records import Record
from lookout.runtime.worker.topic_reader import End, KafkaAccess, TopicReader
from lookout.wire.headers import Headers

#: maximum distance between two wanted records at which the records between them are read and skipped
# Seeking is slower over short distances, because it discards what the client has fetched ahead.
NEAR = 64


class RecordReader:
    """Reads given committed records of a topic. Safe from any thread; one call at a time.

    Args:
        settings: How Kafka is reached.
        name: As for `TopicReader`.
    """

    def __init__(self, settings: KafkaAccess, name: str = "record-reader") -> None:
        self._lock = threading.Lock()
        self._reader = TopicReader(settings, name)

    def read(
        self, topic: str, partition: int, offsets: Iterable[int], timeout_s: float = 30.0
    ) -> list[Record]:
        """Return the records at `offsets`, sorted by offset, each once.

        Raises:
            RecordsGoneError: Retention has removed a record, or the topic never had it.
            TransientError: Kafka does not answer in time.
        """
        sought = sorted(set(offsets))
        if not sought:
            return []
        if sought[0] < 0:  # to Kafka, a negative offset means "at the end" or "at the beginning"
            raise RecordsGoneError(f"{topic} [{partition}] has no offset {sought[0]}")
        with self._lock:
            try:
                self._reader.check_partition(topic, partition, timeout_s)
                return self._read(topic, partition, sought, time.monotonic() + timeout_s)
            except (TransientError, KafkaException):
                self._reader.close()
                raise

    def close(self) -> None:
        """Close the client."""
        with self._lock:
            self._reader.close()

    def _read(self, topic: str, partition: int, wanted: list[int], deadline: float) -> list[Record]:
        records: dict[int, Record] = {}
        try:
            position = -1
            for offset in wanted:
                if offset in records:
                    continue
                if position < 0 or offset - position > NEAR:
                    self._reader.read_from(topic, {partition: offset})
                while offset not in records:
                    message = self._next(topic, partition, offset, deadline)
                    position = message.offset() or 0
                    if position in wanted:
                        records[position] = record_of(message)
                    if position > offset and offset not in records:
                        raise RecordsGoneError(_gone(topic, partition, offset, f"next: {position}"))
        finally:
            self._reader.stop_reading()
        return [records[offset] for offset in wanted]

    def _next(self, topic: str, partition: int, offset: int, deadline: float) -> Message:
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TransientError(f"Kafka did not give {topic} [{partition}] offset {offset} in time")
            try:
                message = self._reader.next(min(remaining, 0.5))
            except RecordsGoneError as error:
                raise RecordsGoneError(_gone(topic, partition, offset, str(error))) from error
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                continue  # the client tries again by itself
            if isinstance(message, End):
                raise RecordsGoneError(
                    f"{topic} [{partition}] ends before offset {offset}; the topic may have been recreated"
                )
            if message is not None:
                return message


def _gone(topic: str, partition: int, offset: int, why: str) -> str:
    return (
        f"{topic} [{partition}] no longer has offset {offset} ({why}), because its retention.ms is shorter "
        "than the outage"
    )


#: calls `headers()` from C code, which detects an exception set beside the result; specialised bytecode does
#: not
_headers_in: Final = methodcaller("headers")


def record_of(message: Message) -> Record:
    """Convert a consumed message to a Record. The message's key should be a camera id."""
    headers, damage = _headers(message)
    key = message.key() or b""
    camera = key.decode("utf-8", "replace")
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        camera=camera,
        value=message.value() or b"",
        headers=headers,
        timestamp_ms=message.timestamp()[1],
        damage=damage,
        raw_key=key if camera.encode() != key else b"",
    )


def _headers(message: Message) -> tuple[Headers, str]:
    """Return the headers of a message, and what is wrong with them; the latter is empty if they are valid.

    If the name of a header is not UTF-8, the client (confluent-kafka 2.16) sets an exception and returns a
    list with a missing item. Reading that item would crash the process, so the message's headers are replaced
    by an empty list.
    """
    try:
        return _decoded(_headers_in(message) or ()), ""
    except (SystemError, UnicodeDecodeError) as error:
        message.set_headers([])
        return (), f"the name of a header is not UTF-8: {error.__cause__ or error}"


def _decoded(headers: Iterable[tuple[str, object]]) -> Headers:
    return tuple(
        (name, value if isinstance(value, bytes) else str(value).encode())
        for name, value in headers
        if value is not None
    )
