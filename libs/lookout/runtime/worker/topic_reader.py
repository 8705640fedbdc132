"""Reads partitions from chosen offsets, without joining a consumer group."""

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
#: milliseconds that Kafka holds a fetch for which it has no records; the client's default is 500
# The client reports the end of a partition only after such a fetch, and answers a seek only after the pending
# fetch. Readers that seek often would wait each time.
WAIT_MS: Final = 10
_READ_S: Final = 60.0
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_ASK_AGAIN_S: Final = 0.1
#: seconds between two searches for new partitions of followed topics
LOOK_S: Final = 30.0
_LOOK_ANSWER_S: Final = 2.0


class KafkaAccess(Protocol):
    """How Kafka is reached."""

    @property
    def instance(self) -> str:
        """Name of this process, which is part of its group's name."""

    def kafka(self, **more: Any) -> dict[str, Any]:
        """Return a client's options; `more` take precedence."""


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
    """The end of a partition. Everything committed below `offset` has been read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset in a partition, and the mark that the worker stored with it."""

    offset: int
    mark: str = ""


class TopicReader:
    """Reads committed records. Clients are created on first use. Only one thread at a time may use it.

    Args:
        settings: how Kafka is reached.
        name: the clients' name, for logs.
        group: the group whose committed offsets `committed` returns; it is never joined. Empty: a group of
            this reader.
        options: more librdkafka options.

    Attributes:
        positions: The next offset to read, for each partition that has delivered something.
        unread: The partitions that are being read and whose end was not reached yet.
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
        """Return the numbers of the topic's partitions, ascending.

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
        """
        metadata = self._open().list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def known(self, topics: Collection[str], timeout_s: float) -> dict[str, list[int]]:
        """Return the partitions of the existing topics among these, with one request.

        Raises:
            KafkaException: Kafka does not answer.
        """
        metadata = self._open().list_topics(timeout=timeout_s).topics
        there = [topic for topic in topics if topic in metadata and metadata[topic].error is None]
        return {topic: sorted(metadata[topic].partitions) for topic in there}

    def check_partition(self, topic: str, partition: int, timeout_s: float) -> None:
        """Check that a partition exists, because a client would wait forever for records of a missing one.

        Raises:
            RecordsGoneError: The topic does not have the partition.
            KafkaException: Kafka does not answer, or rejects the request.
        """
        if partition in self._known.get(topic, ()):
            return
        partitions = self._known[topic] = frozenset(self.partitions(topic, timeout_s))
        if partition not in partitions:
            raise RecordsGoneError(f"{topic} has {len(partitions)} partitions, and no partition {partition}")

    def committed(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """Return the group's committed offsets by partition; partitions without a commit are omitted.

        Kafka answers only when no transaction with these offsets is open. The consumer's call is used,
        because the admin client's call crashes when the broker answers NOT_COORDINATOR (a segmentation fault
        in librdkafka 2.16).

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
        """
        commits = self.commits(topic, partitions, timeout_s)
        return {partition: commit.offset for partition, commit in commits.items()}

    def commits(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, Commit]:
        """Return the group's committed offsets, as `committed` does, with the mark stored with each.

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
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
        """Return the end offset of each partition, including records of open transactions; with `committed`,
        the offset at which the first open transaction begins.

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
        """
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._edges(topic, partitions, OffsetSpec.latest(), timeout_s, isolation)

    def begins(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """Return the first offset that each partition still has.

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
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
        """Return, for each partition, the offset of the first record with this time stamp or a later one
        (Unix milliseconds); the end of the partition if it has none.

        Raises:
            KafkaException: Kafka does not answer, or rejects the request.
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
        """Start reading all partitions of these topics, and no others. Partitions and topics that are added
        later are read from their beginning.

        Args:
            begins: The topics, each with the start of partitions that have no entry in `starts` (BEGINNING or
                END).
            starts: The start offset of some partitions.
            timeout_s: Seconds that a request may take.

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
        """Look for new partitions of the followed topics, to which cameras move, and read them."""
        self._look_at = time.monotonic() + LOOK_S
        with suppress(KafkaException):  # Kafka does not answer; the next search is soon enough
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
        """Yield records until the end of each partition that is being read was reached.

        Raises:
            TimeoutError: Kafka sends nothing for `patience_s`.
            RecordsGoneError: An offset is no longer in the topic.
            KafkaException: The client reports another error.
        """
        while self.unread:
            message = self.next(patience_s)
            if message is None:
                topic = min(self.unread)[0]
                raise TimeoutError(
                    f"{topic} cannot be read to its end: Kafka sent nothing for {patience_s:g} s"
                )
            if not isinstance(message, End):
                yield message

    def close(self) -> None:
        """Close the clients, for example because they may have outdated metadata of a broker that was down.
        The next call creates new ones."""
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
        topic: Name of the topic.
        start_ms: Time stamp of the first record to read, Unix milliseconds; 0: all records.

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
    """Turn Kafka's errors and time-outs inside the context into TransientError, so that the record is
    retried.

    Raises:
        TransientError: Kafka failed.
    """
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise TransientError(str(error)) from error
