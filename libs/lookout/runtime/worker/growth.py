"""Adds partitions to the cameras' topics while a fleet runs.

Producers choose a camera's partition by its key and the number of partitions, so some cameras move when
partitions are added. In its new partition, a camera begins a new epoch with a key window. This module writes
a record to the camera's old partition, where the camera would otherwise count as silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import NewPartitions

from lookout.errors import LookoutRuntimeError
from lookout.runtime.kafka_clients import AdminClient, Producer
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.topic_reader import BEGINNING, ClientOptions, TopicReader
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.wire import PIPELINE, SEGMENTS, Stage, WireError, camera_topics, headers, received

#: as in the chart (`charts/derive.py`)
MOST_PARTITIONS = 10_000
#: an epoch's number is this many times its record time in milliseconds, plus its partition
_PER_MS = 1000
#: seconds for which a departure must be observed before it is written
SETTLED_S = 3.0
#: milliseconds without a segment, while another partition gets some, after which a camera has left a
#: partition; less than decode's default silence, so that the camera does not count as offline
QUIET_MS = 20_000
_CALL_S = 30.0
_CONFIRMED_S = 60.0


@dataclass(frozen=True, slots=True)
class Departure:
    """A camera that has left a partition.

    Attributes:
        camera: Id of the camera.
        partition: The partition that it left.
        epoch: The epoch that ends there.
        target: The camera's new partition.
    """

    camera: str
    partition: int
    epoch: int
    target: int


def added_by_hand(topic: str, partition: int, source: str) -> str:
    """Return advice for a partition that the input topic has and another topic lacks.

    Args:
        topic: The topic that lacks the partition.
        partition: Number of the partition.
        source: The input topic.
    """
    return (
        f"{source} has a partition {partition} that {topic} lacks, so the partition is not processed. Add it "
        f"with `lookout topics grow --partitions {partition + 1}`, or with as many as {source} has"
    )


def add_partitions(
    options: Mapping[str, Any], partitions: int, own_topics: Collection[str] = ()
) -> tuple[str, ...]:
    """Add partitions to the cameras' topics until each has this number. It may be repeated, also after it was
    killed.

    Output topics grow before the input topic, so that a service that starts meanwhile finds an output
    partition for each input partition.

    Args:
        options: Kafka client options.
        partitions: The new number of partitions.
        own_topics: Topics of third-party services that read Lookout's topics, including their state topics.

    Returns:
        The topics that were changed.

    Raises:
        LookoutRuntimeError: The number is invalid, a topic is missing or has more partitions, or Kafka
            rejects the request. An invalid number changes nothing.
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
        raise LookoutRuntimeError(f"Kafka has no topic {', '.join(missing)}; create the fleet's topics first")
    return {name: len(existing[name].partitions) for name in names}


def _check(counts: Mapping[str, int], partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise LookoutRuntimeError(
            f"{partitions} is not a valid number of partitions; give a number from 1 to {MOST_PARTITIONS}"
        )
    # Among topics with equally many partitions, name the segments' topic, which users know.
    name, count = max(counts.items(), key=lambda item: (item[1], item[0] == SEGMENTS.name))
    if count > partitions:
        raise LookoutRuntimeError(
            f"{name} has {count} partitions; Kafka cannot remove partitions, so give at least {count}"
        )


def _add(admin: AdminClient, names: Collection[str], partitions: int) -> None:
    """Add partitions to these topics, and wait until the brokers' metadata has them.

    Raises:
        LookoutRuntimeError: Kafka rejects the request, or its metadata lacks the partitions after a minute.
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
            raise LookoutRuntimeError(
                f"Kafka accepted {partitions} partitions of {', '.join(names)}, but its metadata still lacks "
                f"some after {_CONFIRMED_S:g} s"
            )
        time.sleep(0.1)


@dataclass(slots=True)
class Places:
    """The partitions in which cameras have been seen, according to decode's checkpoints."""

    _of: dict[str, dict[int, DecodeState]] = field(default_factory=dict)

    def note(self, camera: str, partition: int, state: DecodeState | None) -> None:
        """Store a camera's newest checkpoint in a partition; None: the partition no longer has the camera."""
        places = self._of.setdefault(camera, {})
        if state is not None and state.epoch:
            places[partition] = state
            return
        places.pop(partition, None)
        if not places:
            del self._of[camera]

    def departures(self) -> list[Departure]:
        """Return the cameras that have left a partition.

        A camera has left a partition if nothing has arrived there since the camera's epoch in the newer
        partition began, or for `QUIET_MS` while segments arrived in the newer one. The second condition is
        needed because a repeated segment may open an epoch in the old partition after the departure was
        written there.
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
    """Follows decode's checkpoints, and writes a record to each partition that a camera has left.

    Args:
        options: Kafka client options.
        clock: Monotonic seconds.
    """

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places = Places()
        self._since: dict[Departure, float] = {}
        self._noted: set[Departure] = set()
        self._producer = Producer({**options, "enable.idempotence": True})
        reset = {"auto.offset.reset": "earliest"}
        self._reader = TopicReader(ClientOptions(options), "lookout-growth", options=reset)
        self._reader.follow({PIPELINE[Stage.DECODE].state.name: BEGINNING}, {}, _CALL_S)

    def follow(self, wait_s: float) -> list[Departure]:
        """Read checkpoints for `wait_s` seconds, then write the departures that have not been written yet.

        Returns:
            The departures that were written; Kafka has stored their records.

        Raises:
            LookoutRuntimeError: Kafka does not accept a record.
        """
        until = self._clock() + wait_s
        while (left_s := until - self._clock()) > 0:
            message = self._reader.record(min(left_s, 0.5))
            while message is not None:
                self._take(message)
                message = self._reader.record(0.0)
        return self._write_departures()

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _take(self, message: Message) -> None:
        record, state = record_of(message), decode_state(message)
        rejected = state is None and message.value() is not None
        if not rejected and not record.raw_key:  # no camera has a key that is not UTF-8
            self._places.note(record.camera, record.partition, state)

    def _write_departures(self) -> list[Departure]:
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
            raise LookoutRuntimeError(
                f"Kafka does not accept records about moved cameras in {SEGMENTS.name}: {why}"
            )
        self._noted.update(due)
        return due


def decode_state(message: Message) -> DecodeState | None:
    """Return decode's part of a checkpoint; None if the checkpoint is deleted or invalid."""
    try:
        return None if message.value() is None else received(Checkpoint, record_of(message)).decode
    except WireError:
        return None
