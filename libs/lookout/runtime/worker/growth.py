"""More partitions for the cameras' topics while a fleet runs.

A client chooses a camera's partition by its key and the number of partitions, so cameras move when partitions
are added. In its new partition a camera begins an epoch of its own, after a key window. Its old partition is
told by a record of this room: without it the camera would count as silent there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message, TopicPartition
from confluent_kafka.admin import NewPartitions

from lookout.errors import LookoutRuntimeError
from lookout.runtime.kafka_clients import AdminClient, Consumer, Producer
from lookout.runtime.worker.record_reader import record_of
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.wire import PIPELINE, SEGMENTS, Stage, WireError, camera_topics, headers, prefixed, received

#: as in the chart (`charts/derive.py`)
MOST_PARTITIONS = 10_000
#: milliseconds of which the number of an epoch has a thousand parts
_PER_MS = 1000
#: seconds for which a camera must be seen in two partitions, and speak in the newer one only
SETTLED_S = 3.0
#: milliseconds without a segment, alongside a partition that has some, after which a camera has left; below
#: decode's default silence, so that it does not count as offline
QUIET_MS = 20_000
_CALL_S = 30.0
_CONFIRMED_S = 60.0


@dataclass(frozen=True, slots=True)
class Departure:
    """A camera that has left a partition. epoch: the one that ends there; target: where it is now."""

    camera: str
    partition: int
    epoch: int
    target: int


def added_by_hand(topic: str, partition: int, source: str) -> str:
    """What to do about a partition that one topic has and another has not.

    Args:
        topic: The one without it.
        partition: Its number.
        source: The topic that is read, which has it.
    """
    return (
        f"{source} has a partition {partition} and {topic} has none: nothing of it is processed. Partitions "
        f"that were added to a single topic are completed with `lookout topics grow --partitions "
        f"{partition + 1}` (or as many as {source} has)"
    )


def add_partitions(
    options: Mapping[str, Any], partitions: int, own_topics: Collection[str] = ()
) -> tuple[str, ...]:
    """Bring the cameras' topics to this number of partitions. It may be called again, also after a kill.

    What a service writes grows before what it reads: a service that starts in between finds a partition of
    every output for each that it reads.

    Args:
        options: Of a Kafka client.
        partitions: How many.
        own_topics: State topics, and others, of services that are not Lookout's but read its topics.

    Returns:
        The topics that were changed.

    Raises:
        LookoutRuntimeError: A topic is missing or has more partitions, or Kafka refuses. A number that is
            wrong changes nothing.
    """
    admin = AdminClient({**options})
    names = [*own_topics, *(topic.name for topic in reversed(camera_topics()))]
    counts = _counts(admin, names)
    _check(counts, partitions)
    smaller = [name for name in names if counts[name] < partitions]
    last = [name for name in smaller if name == SEGMENTS.name]
    for group in ([name for name in smaller if name not in last], last):
        _add(admin, group, partitions)
    return tuple(smaller)


def _counts(admin: AdminClient, names: Iterable[str]) -> dict[str, int]:
    try:
        existing = admin.list_topics(timeout=_CALL_S).topics
    except KafkaException as error:
        raise LookoutRuntimeError(f"Kafka does not answer: {error.args[0].str()}") from error
    if missing := sorted(set(names) - set(existing)):
        raise LookoutRuntimeError(f"no topic {', '.join(missing)}: the fleet's topics are not there yet")
    return {name: len(existing[name].partitions) for name in names}


def _check(counts: Mapping[str, int], partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise LookoutRuntimeError(f"{partitions} partitions: 1 to {MOST_PARTITIONS} are possible")
    # Of topics with the same number, that of the cameras' segments: it is the one that users know.
    name, count = max(counts.items(), key=lambda item: (item[1], item[0] == SEGMENTS.name))
    if count > partitions:
        raise LookoutRuntimeError(
            f"{name} has {count} partitions, {partitions} are asked for: Kafka cannot take partitions away"
        )


def _add(admin: AdminClient, names: Collection[str], partitions: int) -> None:
    """Add to these topics, and wait until the brokers' metadata says so.

    Raises:
        LookoutRuntimeError: Kafka refuses, or does not show them in time.
    """
    if not names:
        return
    wanted = [NewPartitions(name, partitions) for name in names]
    for name, future in admin.create_partitions(wanted, operation_timeout=_CALL_S).items():
        try:
            future.result()
        except KafkaException as error:
            raise LookoutRuntimeError(f"cannot add partitions to {name}: {error.args[0].str()}") from error
    deadline = time.monotonic() + _CONFIRMED_S
    while min(_counts(admin, names).values()) < partitions:
        if time.monotonic() > deadline:
            raise LookoutRuntimeError(f"Kafka does not show {partitions} partitions of {', '.join(names)}")
        time.sleep(0.1)


@dataclass(slots=True)
class Places:
    """Where cameras are, by decode's checkpoints."""

    _of: dict[str, dict[int, DecodeState]] = field(default_factory=dict)

    def note(self, camera: str, partition: int, state: DecodeState | None) -> None:
        """The newest checkpoint of a camera in a partition; None: it is forgotten there."""
        places = self._of.setdefault(camera, {})
        if state is not None and state.epoch:
            places[partition] = state
            return
        places.pop(partition, None)
        if not places:
            del self._of[camera]

    def departures(self) -> list[Departure]:
        """Cameras whose segments come in another partition: since its epoch began there, or for `QUIET_MS`.

        The second, because a segment that was sent again may open an epoch after the notice.
        """
        departures = []
        for camera, places in self._of.items():
            if len(places) < 2:
                continue
            newest = max(places, key=lambda number: places[number].arrived_ms)
            since_ms = max(places[newest].epoch // _PER_MS, places[newest].arrived_ms - QUIET_MS)
            departures += [
                Departure(camera, partition, state.epoch, newest)
                for partition, state in places.items()
                if partition != newest and state.arrived_ms < since_ms
            ]
        return departures


class Moves:
    """Follows decode's checkpoints and tells partitions which cameras have left them.

    Args:
        options: Of a Kafka client.
        clock: Monotonic seconds.
    """

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places = Places()
        self._since: dict[Departure, float] = {}
        self._noted: set[Departure] = set()
        self._producer = Producer({**options, "enable.idempotence": True})
        self._consumer = Consumer(
            {
                **options,
                "group.id": prefixed(f"lookout-growth-{uuid.uuid4().hex[:8]}"),
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        topic = PIPELINE[Stage.DECODE].state.name
        numbers = self._consumer.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])

    def follow(self, wait_s: float) -> list[Departure]:
        """Read checkpoints for `wait_s`, and tell the partitions that cameras have left since.

        Returns:
            The departures that were told now; the records are on the brokers.

        Raises:
            LookoutRuntimeError: Kafka does not take a record.
        """
        until = self._clock() + wait_s
        while (left_s := until - self._clock()) > 0:
            for message in self._consumer.consume(1000, timeout=min(left_s, 0.5)):
                if message.error() is None:
                    record, state = record_of(message), decode_state(message)
                    rejected = state is None and message.value() is not None
                    if not rejected and not record.raw_key:  # no camera has a key that is not UTF-8
                        self._places.note(record.camera, record.partition, state)
        return self._tell()

    def close(self) -> None:
        """Drop the clients."""
        self._consumer.close()

    def _tell(self) -> list[Departure]:
        now, current = self._clock(), set(self._places.departures()) - self._noted
        self._since = {departure: self._since.get(departure, now) for departure in current}
        due = [departure for departure, since in self._since.items() if now - since >= SETTLED_S]
        refused: list[str] = []
        for departure in due:
            self._producer.produce(
                SEGMENTS.name,
                key=departure.camera.encode(),
                partition=departure.partition,
                headers=[*headers.encode({headers.MOVED: str(departure.target)})],
                on_delivery=lambda error, _: refused.append(error.str()) if error is not None else None,
            )
        if self._producer.flush(_CALL_S) or refused:
            why = refused[0] if refused else "no answer in time"
            raise LookoutRuntimeError(f"{SEGMENTS.name} does not take records of cameras that moved: {why}")
        self._noted.update(due)
        return due


def decode_state(message: Message) -> DecodeState | None:
    """What a checkpoint says of the stream; None for a deleted one, and for one that is rejected."""
    try:
        return None if message.value() is None else received(Checkpoint, record_of(message)).decode
    except WireError:
        return None
