"""A consumer that belongs to no group's assignment: it reads partitions from a place of one's choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
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
from lookout.runtime.worker.settings import ServiceSettings
from lookout.wire import prefixed

BEGINNING = OFFSET_BEGINNING
#: how long Kafka holds a fetch for which it has no record; the client's default is half a second
# The end of a partition is told after one such fetch, and a fetch for another place is sent once the one
# before is answered: a reader that goes from place to place would wait for it every time.
WAIT_MS: Final = 10
_READ_S: Final = 60.0
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_ASK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class End:
    """Everything of `partition` below `offset` that is committed was read."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """What a group committed of a partition. mark: what its worker wrote alongside the offset."""

    offset: int
    mark: str = ""


class TopicReader:
    """Reads committed records. Clients are made on first use; not safe for several threads at a time.

    Args:
        settings: how Kafka is reached.
        name: of the clients, in logs.
        group: whose committed offsets `committed` tells; it is never joined.
        options: more librdkafka options.
    """

    def __init__(
        self,
        settings: ServiceSettings,
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
        self._known: dict[str, frozenset[int]] = {}  # partitions that topics were seen to have

    def partitions(self, topic: str, timeout_s: float) -> list[int]:
        """The topic's partitions.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        metadata = self._open().list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def check_partition(self, topic: str, partition: int, timeout_s: float) -> None:
        """Check that a partition exists, so that nobody waits for records of one that never will.

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
        """The group's offsets; a partition that was never committed is absent.

        Kafka tells them once no transaction over them is open. Asked by a consumer, because the admin
        client's call dereferences a missing group when the broker answers NOT_COORDINATOR (librdkafka 2.16,
        seen as a segmentation fault while a broker settles).

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        commits = self.commits(topic, partitions, timeout_s)
        return {partition: commit.offset for partition, commit in commits.items()}

    def commits(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, Commit]:
        """As `committed`, with what was committed alongside each offset.

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

    def ends(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """High watermarks, open transactions included.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        return self._edges(topic, partitions, OffsetSpec.latest(), timeout_s)

    def begins(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """Offsets below which retention has removed everything.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        return self._edges(topic, partitions, OffsetSpec.earliest(), timeout_s)

    def _edges(
        self, topic: str, partitions: Collection[int], edge: OffsetSpec, timeout_s: float
    ) -> dict[int, int]:
        if self._admin is None:
            self._admin = AdminClient(
                self._settings.kafka(), logger=logs.client_logger(f"{self._name}-admin")
            )
        where = {TopicPartition(topic, partition): edge for partition in partitions}
        futures = self._admin.list_offsets(
            where, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
        )
        return {place.partition: int(future.result().offset) for place, future in futures.items()}

    def at(self, topic: str, partitions: Collection[int], time_ms: int, timeout_s: float) -> dict[int, int]:
        """Offsets of the first records with this time stamp (Unix milliseconds) or a later one; where there
        is none, of the end.

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
        """Read these partitions from now on, each from its offset (or BEGINNING)."""
        self._open().assign(
            [TopicPartition(topic, partition, offset) for partition, offset in starts.items()]
        )

    def stop_reading(self) -> None:
        """Read nothing."""
        if self._consumer is not None:
            self._consumer.unassign()

    def next(self, timeout_s: float) -> Message | End | None:
        """The next record or end of a partition; None: nothing in time.

        Raises:
            RecordsGoneError: An offset is no longer in the topic.
            KafkaException: For what the client cannot get over by itself.
        """
        message = self._open().poll(timeout_s)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return message
        if error.code() == KafkaError._PARTITION_EOF:
            return End(message.partition() or 0, message.offset() or 0)
        if error.code() in _GONE:
            raise RecordsGoneError(f"{message.topic()} [{message.partition()}]: {error.str()}")
        raise KafkaException(error)

    def close(self) -> None:
        """Drop the clients and what they knew of a broker that was away; the next call makes new ones."""
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


def read_topic(settings: ServiceSettings, name: str, topic: str, start_ms: int = 0) -> Iterator[Message]:
    """The committed records of a topic up to its end now.

    Args:
        settings: How Kafka is reached.
        name: Of the client, in logs.
        topic: Its name.
        start_ms: From which time on, Unix milliseconds; 0: all.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka does not answer, or refuses.
    """
    reader = TopicReader(settings, name, options={"auto.offset.reset": "earliest"})
    try:
        partitions = reader.partitions(topic, _READ_S)
        starts = reader.at(topic, partitions, start_ms, _READ_S) if start_ms else {}
        reader.read_from(topic, {number: starts.get(number, BEGINNING) for number in partitions})
        unread = set(partitions)
        while unread:
            message = reader.next(_READ_S)
            if message is None:
                raise TimeoutError(f"{topic} cannot be read to its end: {_READ_S:g} s without a record")
            if isinstance(message, End):
                unread.discard(message.partition)
            else:
                yield message
    finally:
        reader.close()


@contextmanager
def tried_again() -> Iterator[None]:
    """What Kafka does not answer within this block is tried again with the record in work.

    Raises:
        TransientError: Instead of Kafka's errors.
    """
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise TransientError(str(error)) from error
