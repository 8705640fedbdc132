"""Records that people write: confirmed by Kafka, with who wrote them and for which request."""

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
    """Kafka did not take a record; the text has its reason."""


def this_user() -> str:
    """The user of this machine, as records name who wrote them."""
    return f"{getpass.getuser()}@{socket.gethostname()}"[:200]


#: keys and values; None deletes. Of pairs a key may occur twice
Records = Mapping[str, bytes | None] | Mapping[bytes, bytes | None] | Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who writes, and for which request.

    Attributes:
        actor: A token's name, a person's, or user@host of a command.
        key: The same on each copy of one request; readers take the first record.
    """

    actor: str = field(default_factory=this_user)
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    def headers(self) -> headers.Headers:
        """As headers of a record."""
        return headers.encode({headers.ACTOR: self.actor, headers.REQUEST_KEY: self.key})


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class Writer:
    """Writes records and waits until Kafka has them. Safe for several threads at a time.

    Args:
        options: Of a Kafka client.
        explain: The reason of a failure in words, from Kafka's error; None: Kafka's own words.
        timeout_s: Seconds after which a record without an answer has failed.
        logger: Gets what the client would else print on standard error.
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
        """Write records (None deletes) and wait until Kafka has them; returns where they are.

        Args:
            topic: Where they go.
            records: Keys and values.
            origin: Who writes; None: this user.
            on_done: Is told the key of each record that Kafka has.
            more: Headers beyond those of the origin.

        Raises:
            WriteError: One was refused, with Kafka's reason.
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
        # Longer than a record may take: what is not confirmed then has its reason.
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
        """Give a record to the client and return at once; `failed` is told why Kafka did not take it.

        It is told on the thread of a later call.
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
        """Give a record to the client; waits while its buffer is full."""
        while True:
            try:
                self._producer.produce(topic, **record)
            except BufferError:
                self._producer.poll(0.1)
                continue
            return
