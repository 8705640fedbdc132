"""A consumer outside any group's assignment, which reads partitions from chosen offsets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lookout.errors import RecordsGoneError, TransientError
from lookout.runtime.kafka_clients import AdminClient, Consumer, coordinator_moves
from lookout.runtime.observe import logs
from lookout.wire import prefixed

BEGINNING, END = OFFSET_BEGINNING, OFFSET_END
#: a partition: topic and number
Place = tuple[str, int]
#: milliseconds that Kafka holds a fetch for which it has no record; the client's default is 500
# The client reports the end of a partition after one such fetch, and sends a fetch for another offset only
# once the previous one is answered: a reader that seeks often would wait for it every time.
WAIT_MS: Final = 10
_READ_S: Final = 60.0
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_ASK_AGAIN_S: Final = 0.1
#: seconds between two looks for partitions that were added to topics that are followed
LOOK_S: Final = 30.0
_LOOK_ANSWER_S: Final = 2.0


class KafkaAccess(Protocol):
    """How Kafka is reached."""

    @property
    def instance(self) -> str:
        """Name of this process in its group's name."""

    def kafka(self, **more: Any) -> dict[str, Any]:
        """Return options of a client, then `more`."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """`KafkaAccess` of a command.

    Attributes:
        options: Options of every client.
        instance: A name that no other process has.
    """

    options: Mapping[str, Any]
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def kafka(self, **more: Any) -> dict[str, Any]:
        """See `KafkaAccess`."""
        return {**self.options, **more}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a partition: everything committed below `offset` was read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset of a partition. mark: what its worker wrote alongside the offset."""

    offset: int
    mark: str = ""


class TopicReader:
    """Reads committed records. Clients are made on first use; use it from one thread at a time.

    Args:
        settings: how Kafka is reached.
        name: the clients' name, for logs.
        group: the group whose committed offsets `committed` returns; it is never joined.
        options: more librdkafka options.

    Attributes:
        positions: The offset that is read next, for the partitions of which something was read.
    """

    def __init__(
        self,
        settings: KafkaAccess,
        name: str,
        *,
        group: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._group = group or prefixed(f"{name}-{settings.instance}")
        self._options = dict(options or {})
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._known: dict[str, frozenset[int]] = {}  # partitions seen, by topic
        self.positions: dict[Place, int] = {}
        self._reading: set[Place] = set()
        self.unread: set[Place] = set()  # being read, and their end was not reached yet
        self._begins: Mapping[str, int] = {}  # topics whose new partitions are read too
        self._look_at = 0.0

    def partitions(self, topic: str, timeout_s: float) -> list[int]:
        """Return the topic's partitions.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        metadata = self._open().list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def known(self, topics: Collection[str], timeout_s: float) -> dict[str, list[int]]:
        """Return the partitions of those of the topics that exist, with one request.

        Raises:
            KafkaException: Kafka does not answer.
        """
        metadata = self._open().list_topics(timeout=timeout_s).topics
        there = [topic for topic in topics if topic in metadata and metadata[topic].error is None]
        return {topic: sorted(metadata[topic].partitions) for topic in there}

    def check_partition(self, topic: str, partition: int, timeout_s: float) -> None:
        """Check that a partition exists, so that nobody waits for records that can never come.

        Raises:
            RecordsGoneError: The topic does not have it.
            KafkaException: Kafka does not answer, or refuses.
        """
        if partition in self._known.get(topic, ()):
            return
        partitions = self._known[topic] = frozenset(self.partitions(topic, timeout_s))
        if partition not in partitions:
            raise RecordsGoneError(f"{topic} has {len(partitions)} partitions, and no partition {partition}")

    def committed(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """Return the group's offsets; a partition without a commit is absent.

        Kafka returns them once no transaction over them is open. A consumer asks for them, because the admin
        client's call dereferences a missing group when the broker answers NOT_COORDINATOR (librdkafka 2.16,
        seen as a segmentation fault while a broker settles).

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        commits = self.commits(topic, partitions, timeout_s)
        return {partition: commit.offset for partition, commit in commits.items()}

    def commits(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, Commit]:
        """Return the group's offsets as `committed` does, with what was committed alongside each.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        places = [TopicPartition(topic, partition) for partition in partitions]
        retrying = Retrying(
            stop=stop_after_delay(timeout_s),
            wait=wait_fixed(_ASK_AGAIN_S),
            retry=retry_if_exception(coordinator_moves),
            reraise=True,
        )
        answers = retrying(self._committed, places, timeout_s)
        return {
            place.partition: Commit(int(place.offset), place.metadata or "")
            for place in answers
            if place.offset >= 0
        }

    def _committed(self, places: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        answers: list[TopicPartition] = self._open().committed(places, timeout=timeout_s)
        for answer in answers:
            if answer.error:
                raise KafkaException(answer.error)
        return answers

    def ends(
        self, topic: str, partitions: Collection[int], timeout_s: float, *, committed: bool = False
    ) -> dict[int, int]:
        """Return the high watermarks, open transactions included; with `committed`, where the first of these
        begins.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._edges(topic, partitions, OffsetSpec.latest(), timeout_s, isolation)

    def begins(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """Return the first offsets that retention has left.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        return self._edges(topic, partitions, OffsetSpec.earliest(), timeout_s)

    def _edges(
        self,
        topic: str,
        partitions: Collection[int],
        edge: OffsetSpec,
        timeout_s: float,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[int, int]:
        if self._admin is None:
            self._admin = AdminClient(
                self._settings.kafka(), logger=logs.client_logger(f"{self._name}-admin")
            )
        where = {TopicPartition(topic, partition): edge for partition in partitions}
        futures = self._admin.list_offsets(where, isolation_level=isolation, request_timeout=timeout_s)
        return {place.partition: int(future.result().offset) for place, future in futures.items()}

    def at(self, topic: str, partitions: Collection[int], time_ms: int, timeout_s: float) -> dict[int, int]:
        """Return the offsets of the first records with this time stamp (Unix milliseconds) or a later one;
        the end of a partition that has none.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        places = [TopicPartition(topic, answer, time_ms) for answer in partitions]
        answers = self._open().offsets_for_times(places, timeout=timeout_s)
        for answer in answers:
            if answer.error:
                raise KafkaException(answer.error)
        return {place.partition: int(place.offset) for place in answers}

    def read_from(self, topic: str, starts: Mapping[int, int]) -> None:
        """Start reading these partitions, each from its offset (or BEGINNING), and no others."""
        self.read_places({(topic, partition): offset for partition, offset in starts.items()})

    def read_places(self, starts: Mapping[Place, int]) -> None:
        """Start reading these partitions of any topics, each from its offset, and no others."""
        self._open().assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        self._reading, self.unread, self._begins = set(starts), set(starts), {}
        self.positions = {}

    def follow(self, begins: Mapping[str, int], starts: Mapping[Place, int], timeout_s: float) -> None:
        """Start reading all partitions of these topics, and no others. What is added later is read from its
        beginning: partitions, and topics that do not exist yet.

        Args:
            begins: The topics, and where partitions without an entry in `starts` begin (BEGINNING, END).
            starts: The offset at which a partition begins.
            timeout_s: Limit of a request.

        Raises:
            KafkaException: Kafka does not answer.
        """
        places = self._places(begins, timeout_s)
        self.read_places({place: starts.get(place, begins[place[0]]) for place in places})
        self._begins, self._look_at = begins, time.monotonic() + LOOK_S

    def _places(self, topics: Collection[str], timeout_s: float) -> set[Place]:
        known = self.known(topics, timeout_s)
        return {(topic, number) for topic, numbers in known.items() for number in numbers}

    def _add_partitions(self) -> None:
        """Read partitions that were added to the followed topics: cameras move to them."""
        self._look_at = time.monotonic() + LOOK_S
        with suppress(KafkaException):  # Kafka does not answer: the next look is soon enough
            if added := self._places(self._begins, _LOOK_ANSWER_S) - self._reading:
                self._open().incremental_assign([TopicPartition(*place, BEGINNING) for place in added])
                self._reading |= added

    def stop_reading(self) -> None:
        """Stop reading all partitions."""
        self._begins = {}
        if self._consumer is not None:
            self._consumer.unassign()

    def next(self, timeout_s: float) -> Message | End | None:
        """Return the next record or end of a partition; None if nothing arrives in time.

        Raises:
            RecordsGoneError: An offset is no longer in the topic.
            KafkaException: The client reports another error.
        """
        if self._begins and time.monotonic() > self._look_at:
            self._add_partitions()
        message = self._open().poll(timeout_s)
        if message is None:
            return None
        place, error = (str(message.topic()), message.partition() or 0), message.error()
        if error is None:
            self.positions[place] = (message.offset() or 0) + 1
            return message
        if error.code() == KafkaError._PARTITION_EOF:
            self.positions[place] = message.offset() or 0
            self.unread.discard(place)
            return End(*place, message.offset() or 0)
        if error.code() in _GONE:
            raise RecordsGoneError(f"{message.topic()} [{message.partition()}]: {error.str()}")
        raise KafkaException(error)

    def record(self, timeout_s: float) -> Message | None:
        """Return the next record; None if none arrives in time, or while the client recovers from an error.

        Raises:
            KafkaException: The client cannot recover.
        """
        until = time.monotonic() + timeout_s
        while True:
            try:
                message = self.next(max(0.0, until - time.monotonic()))
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                return None
            if not isinstance(message, End):
                return message

    def to_the_end(self, patience_s: float = _READ_S) -> Iterator[Message]:
        """Yield the records of what is being read, until the end of each partition was reached.

        Raises:
            TimeoutError: Kafka sends nothing for `patience_s`.
            RecordsGoneError: An offset is no longer in the topic.
            KafkaException: The client reports another error.
        """
        while self.unread:
            message = self.next(patience_s)
            if message is None:
                topic = min(self.unread)[0]
                raise TimeoutError(f"{topic} cannot be read to its end: {patience_s:g} s without a record")
            if not isinstance(message, End):
                yield message

    def close(self) -> None:
        """Close the clients, which may hold stale metadata of a broker that was down; the next call makes new
        ones."""
        self._admin = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            options = {
                "group.id": self._group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": WAIT_MS,
                **self._options,
            }
            self._consumer = Consumer(self._settings.kafka(**options), logger=logs.client_logger(self._name))
        return self._consumer


def read_topic(settings: KafkaAccess, name: str, topic: str, start_ms: int = 0) -> Iterator[Message]:
    """Yield the committed records of a topic up to its current end.

    Args:
        settings: How Kafka is reached.
        name: The client's name, for logs.
        topic: Its name.
        start_ms: Time of the first record to read, Unix milliseconds; 0: all.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka does not answer, or refuses.
    """
    reader = TopicReader(settings, name, options={"auto.offset.reset": "earliest"})
    try:
        partitions = reader.partitions(topic, _READ_S)
        starts = reader.at(topic, partitions, start_ms, _READ_S) if start_ms else {}
        reader.read_from(topic, {number: starts.get(number, BEGINNING) for number in partitions})
        yield from reader.to_the_end()
    finally:
        reader.close()


@contextmanager
def tried_again() -> Iterator[None]:
    """Turn Kafka's errors and time-outs within the block into transient ones, so that the record is retried.

    Raises:
        TransientError: Instead of Kafka's errors.
    """
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise TransientError(str(error)) from error
