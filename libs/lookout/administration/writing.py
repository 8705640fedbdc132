"""Writes records of people's changes, with their author and request, and waits until Kafka confirms them."""

from __future__ import annotations

import getpass
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from lookout.errors import LookoutError
from lookout.runtime.kafka_clients import Producer
from lookout.wire import MAX_MESSAGE_BYTES, headers, key_text

#: seconds that Kafka may take to confirm a record
CONFIRM_S: Final = 60.0


class WriteError(LookoutError):
    """Kafka did not accept a record; the text says why."""


def this_user() -> str:
    """Return user@host, the author of records that are written on this machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"[:200]


#: keys and values; a value of None deletes. A sequence of pairs may contain a key twice
Records = Mapping[str, bytes | None] | Mapping[bytes, bytes | None] | Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Origin:
    """The author of records, and the request to which they belong.

    Attributes:
        actor: The name of a token or person, or user@host for a command.
        key: Identifies the request; if it was written several times, readers use the first record.
    """

    actor: str = field(default_factory=this_user)
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    def headers(self) -> headers.Headers:
        """Return the origin as headers of a record."""
        return headers.encode({headers.ACTOR: self.actor, headers.REQUEST_KEY: self.key})


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of a record in Kafka."""

    topic: str
    partition: int
    offset: int


class Writer:
    """Writes records and waits until Kafka has them. Thread-safe.

    Args:
        options: Kafka client options.
        explain: Describes a Kafka error in words; None: Kafka's own words are used.
        timeout_s: Seconds after which an unanswered record has failed.
        logger: Receives what the client would otherwise print on standard error.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        explain: Callable[[KafkaError], str] | None = None,
        timeout_s: float = CONFIRM_S,
        logger: logging.Logger | None = None,
    ) -> None:
        self._bootstrap, self._timeout_s = str(options["bootstrap.servers"]), timeout_s
        self._explain = explain or (lambda error: str(error.str()))
        self._producer = Producer(
            {
                **options,
                "enable.idempotence": True,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "queue.buffering.max.kbytes": 128 << 10,
                "linger.ms": 5,
                "delivery.timeout.ms": round(timeout_s * 1000),
            },
            **({} if logger is None else {"logger": logger}),
        )

    def write(
        self,
        topic: str,
        records: Records,
        origin: Origin | None = None,
        on_done: Callable[[str], None] | None = None,
        more: headers.Headers = (),
    ) -> list[RecordPlace]:
        """Write records (None deletes), wait until Kafka has them, and return their places.

        Args:
            topic: The topic to write to.
            records: Keys and values.
            origin: The author and request; None: this user.
            on_done: Called with the key of each record that Kafka has.
            more: Headers in addition to those of the origin.

        Raises:
            WriteError: Kafka rejected a record or did not answer in time.
        """
        places: list[RecordPlace] = []
        failures: list[str] = []
        complete = threading.Event()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(self._explain(error))
            else:
                places.append(RecordPlace(topic, message.partition() or 0, message.offset() or 0))
                if on_done is not None:
                    on_done(key_text(message.key()))
            if len(places) + len(failures) == len(records):
                complete.set()

        pairs = [*(origin or Origin()).headers(), *more]
        for key, value in records.items() if isinstance(records, Mapping) else records:
            self._hand_over(topic, key=key, value=value, headers=pairs, on_delivery=delivered)
        # Longer than a record's own time limit, so that every record is confirmed or has failed by then.
        deadline = time.monotonic() + 2 * self._timeout_s
        while records and not complete.is_set() and time.monotonic() < deadline:
            self._producer.poll(0.05)
        if failures or (records and not complete.is_set()):
            raise WriteError(
                f"Kafka at {self._bootstrap} did not accept the record: "
                f"{failures[0] if failures else 'no answer'}"
            )
        return places

    def send(
        self, topic: str, key: str, value: bytes, origin: Origin, failed: Callable[[str], object]
    ) -> None:
        """Pass a record to the client and return at once. If Kafka does not accept the record, `failed` is
        called with the reason, on the thread of a later call.
        """

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed(self._explain(error))

        self._producer.poll(0)
        try:
            self._producer.produce(
                topic, key=key, value=value, headers=list(origin.headers()), on_delivery=delivered
            )
        except BufferError:
            failed("the client's buffer is full")

    def _hand_over(self, topic: str, **record: Any) -> None:
        """Pass a record to the client; wait while its buffer is full."""
        while True:
            try:
                self._producer.produce(topic, **record)
            except BufferError:
                self._producer.poll(0.1)
                continue
            return
