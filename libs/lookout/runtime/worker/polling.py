"""Reads a topic as a member of a consumer group, and delivers records, ends of partitions, rebalances and
Kafka's state to a listener."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from lookout.errors import FencedError, LookoutRuntimeError
from lookout.runtime.kafka_clients import Consumer
from lookout.runtime.observe import logs
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.records import Record
from lookout.runtime.worker.retry import CALL_S, retry_until
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.topic_reader import TopicReader

MESSAGES_A_TURN = 256
#: share of a session that loading may take; the rest is for starting the container, Python and imports
LOAD_SHARE = 0.5
#: maximum milliseconds between two heartbeats; the client's default
HEARTBEAT_MS = 3000
#: maximum age of the client's topic metadata, milliseconds
METADATA_MS = 30_000
#: share of a session without an answer after which the coordinator counts as having been suspended
_SILENT_SHARE = 0.7
#: number of sessions after a suspension in which the coordinator may still process a join sent before it
_ECHO_SESSIONS = 4.0
#: seconds that Kafka may take to report a partition's first and last offset
LOW_S = 2.0
_FENCED = frozenset({KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID})
#: texts of fencing errors, because `fatal()` is False for a fatal error that arrives as a message
_FENCED_TEXT = ("FENCED", "Static consumer fenced", "fenced by other")
_UNREADABLE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED})
#: the client's errors for a batch that it cannot read and retries forever
_BROKEN_BATCH = frozenset(
    {
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError.INVALID_MSG,
        KafkaError.MSG_SIZE_TOO_LARGE,
    }
)


class Listener(Protocol):
    """Receives what the consumer reads (`Worker`), always on the polling thread."""

    def on_assigned(self, numbers: Collection[int]) -> None: ...
    def on_revoked(self, numbers: Collection[int]) -> None: ...
    def on_lost(self, numbers: Collection[int]) -> None: ...
    def on_record(self, record: Record) -> None: ...
    def on_end(self, number: int, offset: int) -> None: ...
    def on_unreadable(self, why: str) -> None: ...
    def on_broken_batch(self, number: int, offset: int, why: str) -> None: ...
    def on_kafka(self, up: bool) -> None: ...
    def on_watermarks(self, ends: dict[int, tuple[int, int]]) -> None: ...


def is_static(settings: ServiceSettings, load_s: float) -> bool:
    """Whether to join as a static member, which stays in the group when it stops.

    `load_s` is the time that loading took. A process that loads longer than a session allows does not rejoin
    in time: as a static member, its cameras would wait for the session's end, and then move to other
    instances anyway.
    """
    if settings.static_member is not None:
        return settings.static_member
    return load_s <= LOAD_SHARE * settings.session_timeout_s


def static_name(settings: ServiceSettings, topic: str, identity: str) -> str:
    """Return the name of a static member: its identity and the number of partitions of its topic.

    Kafka gives a restarted member with the same name its partitions back without a rebalance, so nobody would
    read partitions that were added meanwhile. With another name, it is a new member, and the group
    redistributes all partitions when the old member's session ends.

    Raises:
        StartupError: Kafka does not report the partitions in time.
    """
    reader = TopicReader(settings, "partitions")
    try:
        partitions = retry_until(lambda: reader.partitions(topic, CALL_S), settings, topic)
    finally:
        reader.close()
    return f"{identity}.{len(partitions)}"


class Source:
    """Reads one topic as a member of a group. Only the polling thread calls it.

    Args:
        topic: the input topic.
        identity: name of this process, also in messages about fencing.
        listener: receives what is read.
        clock: monotonic seconds.
    """

    def __init__(
        self, topic: str, identity: str, listener: Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._topic = topic
        self._identity = identity
        self._listener = listener
        self._log = logs.get("polling")
        self._clock = clock
        self._fatal: KafkaError | None = None
        self._closing = False
        self._consumer: Any = None
        self._member: set[int] = set()
        self._reading: set[int] = set()
        self._reopen: Callable[[], Any] | None = None
        self._session_s = 0.0
        self._standstill: float | None = None

    def open(self, settings: ServiceSettings, group: str, client_id: str, load_s: float = 0.0) -> None:
        """Join the group.

        Args:
            settings: The service's settings.
            group: The group's name.
            client_id: The client id, whose settings other members compare.
            load_s: Seconds that this process took to load its handler.

        Raises:
            StartupError: Kafka does not report the topic's partitions in time.
        """
        options: dict[str, Any] = {
            "group.id": group,
            "client.id": client_id,
            "group.protocol": "classic",  # of which cooperative-sticky is
            "partition.assignment.strategy": "cooperative-sticky",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,  # offsets are committed in transactions only
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,  # silence counts only at the end of a partition
            "auto.offset.reset": "earliest",
            "session.timeout.ms": int(settings.session_timeout_s * 1000),
            # A member notices a rebalance at its next heartbeat, so heartbeats are frequent even in long
            # sessions.
            "heartbeat.interval.ms": max(200, min(HEARTBEAT_MS, int(settings.session_timeout_s * 1000 / 5))),
            # librdkafka rejects an interval shorter than the session.
            "max.poll.interval.ms": max(60_000, int(settings.session_timeout_s * 1000) + 1),
            # The client reads ahead in addition to the worker, up to half of `in_flight_bytes`.
            "queued.max.messages.kbytes": max(1024, settings.in_flight_bytes >> 11),
            # Added partitions are noticed after at most this time; the default is five minutes.
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "statistics.interval.ms": 1000,
            "stats_cb": self.on_statistics,
            "error_cb": self.on_error,
        }
        if is_static(settings, load_s):
            options["group.instance.id"] = static_name(settings, self._topic, self._identity)
        else:
            self._log.info(
                "joining as a dynamic member: other instances take over the partitions when this one stops",
                load_s=load_s,
            )
        self.use(
            lambda: Consumer(settings.kafka(**options), logger=logs.client_logger("consumer")),
            settings.session_timeout_s,
        )

    def use(self, client: Callable[[], Any], session_s: float) -> None:
        """Join with a new client. If the group later fences this member by mistake, another client is made.

        Args:
            client: makes a client that is not subscribed yet.
            session_s: seconds without a heartbeat after which the group drops a member.
        """
        self._reopen, self._session_s = client, session_s
        self._join()

    def _join(self) -> None:
        assert self._reopen is not None
        self._consumer = self._reopen()
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def close(self) -> None:
        """Leave the group."""
        self._closing = True
        if self._consumer is not None:
            self._consumer.close()

    def metadata(self) -> object:
        """Return the group's metadata, which transactions need."""
        return self._consumer.consumer_group_metadata()

    def read(self, wait_s: float) -> None:
        """Deliver what is available to the listener; wait up to `wait_s` for the first record.

        Rebalances happen within this call.

        Raises:
            FencedError: Another process has taken over this one's identity.
            LookoutRuntimeError: The client cannot continue.
        """
        if self._fatal is not None:
            self._raise(self._fatal)
            return
        # The number of messages is limited, because commits, retries and ticks wait for the end of this loop.
        for turn in range(MESSAGES_A_TURN):
            message = self._consumer.poll(wait_s if turn == 0 else 0)
            if message is None:
                return
            client = self._consumer
            self._accept(message)
            # After a fencing error, the worker may have joined again with another client.
            if client is not self._consumer:
                return

    def pause(self, numbers: Iterable[int]) -> None:
        """Stop reading these partitions for now."""
        self._consumer.pause(self._places(numbers))

    def resume(self, numbers: Iterable[int]) -> None:
        """Continue to read these partitions."""
        self._consumer.resume(self._places(numbers))

    def reads(self, number: int) -> bool:
        """Whether the client reads the partition, paused or not."""
        return number in self._reading

    def low(self, number: int) -> int:
        """Return the first offset that the partition still has; 0 if Kafka does not answer."""
        marks = self._marks(number)
        return max(0, marks[0]) if marks else 0

    def high(self, number: int) -> int | None:
        """Return the offset after the partition's last record; None if Kafka does not answer."""
        marks = self._marks(number)
        return marks[1] if marks else None

    def _marks(self, number: int) -> tuple[int, int] | None:
        where = TopicPartition(self._topic, number)
        try:
            marks: tuple[int, int] | None = self._consumer.get_watermark_offsets(where, timeout=LOW_S)
        except KafkaException:
            return None
        return marks

    def place(self, number: int, offset: int) -> bool:
        """Start to read the partition at `offset`. Returns False if the client cannot seek yet; try again
        later."""
        where = TopicPartition(self._topic, number, offset)
        try:
            if number in self._reading:
                # Unassign and assign, because a seek during a rebalance was observed to have no effect.
                self._consumer.incremental_unassign([where])
                self._reading.discard(number)
            self._consumer.incremental_assign([where])
            self._consumer.resume([where])
        except KafkaException as error:
            self._log.warning(
                "cannot seek yet, trying again", partition=number, offset=offset, why=str(error.args[0])
            )
            return False
        self._reading.add(number)
        return True

    def _places(self, numbers: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in sorted(numbers)]

    # -- events of the client

    def _accept(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._listener.on_record(record_of(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._listener.on_end(message.partition() or 0, message.offset() or 0)
        elif error.code() in _BROKEN_BATCH and (message.offset() or 0) >= 0:
            self._log.warning("Kafka reports an error", error=error.str())
            self._listener.on_broken_batch(message.partition() or 0, message.offset() or 0, error.str())
        else:
            self._raise(error)

    def _raise(self, error: KafkaError) -> None:
        """Raise errors from which the client cannot recover; log the others."""
        fatal = error.fatal() or error.code() == KafkaError._FATAL
        if error.code() in _FENCED or (fatal and any(phrase in error.str() for phrase in _FENCED_TEXT)):
            if self._may_be_echo():
                self._log.warning(
                    "fenced after the coordinator was suspended; joining again", error=error.str()
                )
                self._join_again()
                return
            raise FencedError(
                f"another process runs as {self._identity!r} ({error.str()}), so this process stops; give "
                "each process of a stage a different LOOKOUT_INSTANCE"
            )
        if fatal:
            raise LookoutRuntimeError(f"the consumer of {self._topic} cannot continue: {error.str()}")
        if error.code() in _UNREADABLE:
            self._listener.on_unreadable(f"{self._topic} cannot be read: {error.str()}")
        self._log.warning("Kafka reports an error", error=error.str())

    def _may_be_echo(self) -> bool:
        """Whether the group may have fenced this member because of the member's own second join.

        If the coordinator is suspended for longer than the session, it may afterwards process both a join
        that the client sent before and one that the client sent after a time-out. The second join takes over
        the static name of the first.
        """
        if self._standstill is None:
            return False
        return self._clock() - self._standstill < _ECHO_SESSIONS * self._session_s

    def _join_again(self) -> None:
        if self._member:
            self._listener.on_lost(sorted(self._member))
        self._closing = True  # ignore the old client's last rebalance
        try:
            self._consumer.close()
        finally:
            self._closing = False
        self._fatal = None  # closing the old client reports its fencing again
        self._member, self._reading = set(), set()
        self._join()

    def on_error(self, error: KafkaError) -> None:
        """Handle the client's error callback."""
        if error.fatal() or error.code() in (*_FENCED, KafkaError._FATAL):
            self._fatal = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._listener.on_kafka(False)

    def on_statistics(self, text: str) -> None:
        """Handle the client's statistics: which brokers answer, and where partitions begin and end."""
        facts = json.loads(text)
        brokers = facts.get("brokers", {})
        silent_us = brokers.get("GroupCoordinator", {}).get("rxidle", 0)
        if silent_us > _SILENT_SHARE * self._session_s * 1e6 > 0:
            self._standstill = self._clock()
        states = [broker["state"] for broker in brokers.values()]
        self._listener.on_kafka("UP" in states)
        partitions = facts.get("topics", {}).get(self._topic, {}).get("partitions", {})
        ends = {
            int(number): (max(0, entry.get("lo_offset", 0)), entry["ls_offset"])
            for number, entry in partitions.items()
            if entry.get("ls_offset", -1) >= 0
        }
        self._listener.on_watermarks(ends)

    # -- rebalances

    def _assigned(self, consumer: Any, given: list[TopicPartition]) -> None:
        # Assign nothing yet; `place` assigns each partition with its offset after the takeover. Otherwise,
        # the client would request all committed offsets at once, and one open transaction would delay all
        # partitions.
        consumer.incremental_assign([])
        self._member |= {place.partition for place in given}
        self._listener.on_assigned([place.partition for place in given])

    def _revoked(self, consumer: Any, taken: list[TopicPartition]) -> None:
        if self._closing:
            return
        self._listener.on_revoked([place.partition for place in taken])
        self._stop_reading(consumer, taken)

    def _lost(self, consumer: Any, taken: list[TopicPartition]) -> None:
        if self._closing:
            return
        self._listener.on_lost([place.partition for place in taken])
        self._stop_reading(consumer, taken)

    def _stop_reading(self, consumer: Any, taken: list[TopicPartition]) -> None:
        consumer.incremental_unassign([place for place in taken if place.partition in self._reading])
        numbers = {place.partition for place in taken}
        self._reading -= numbers
        self._member -= numbers
