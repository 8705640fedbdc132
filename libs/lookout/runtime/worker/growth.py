"""Adds partitions to the cameras' topics while a fleet runs.

A client chooses a camera's partition by its key and the number of partitions, so cameras move when partitions
are added. In its new partition a camera begins a new epoch, with a key window. This module writes a record to
its old partition: without it the camera would count as silent there.
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
#: seconds for which a camera must be known in two partitions and send to the newer one only
SETTLED_S = 3.0
#: milliseconds without a segment, while another partition gets some, after which a camera has left; less than
#: decode's default silence, so that the camera does not count as offline
QUIET_MS = 20_000
_CALL_S = 30.0
_CONFIRMED_S = 60.0


@dataclass(frozen=True, slots=True)
class Departure:
    """A camera that has left a partition. epoch: the epoch that ends there; target: its new partition."""

    camera: str
    partition: int
    epoch: int
    target: int


def added_by_hand(topic: str, partition: int, source: str) -> str:
    """Return advice for a partition that one topic has and another lacks.

    Args:
        topic: The topic without it.
        partition: Its number.
        source: The topic that is read, which has it.
    """
    return (
        f"{source} has a partition {partition} that {topic} lacks, so it is not processed. Add it with "
        f"`lookout topics grow --partitions {partition + 1}` (or as many as {source} has)"
    )


def add_partitions(
    options: Mapping[str, Any], partitions: int, own_topics: Collection[str] = ()
) -> tuple[str, ...]:
    """Bring the cameras' topics to this number of partitions. Safe to repeat, even after it was killed.

    Topics that a service writes grow before the one it reads, so a service that starts meanwhile finds an
    output partition for each input partition.

    Args:
        options: Kafka client options.
        partitions: The new number of partitions.
        own_topics: State topics and others of third-party services that read Lookout's topics.

    Returns:
        The topics that were changed.

    Raises:
        LookoutRuntimeError: The number is invalid, a topic is missing or has more partitions, or Kafka
            refuses. An invalid number changes nothing.
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
        raise LookoutRuntimeError(f"no topic {', '.join(missing)}: create the fleet's topics first")
    return {name: len(existing[name].partitions) for name in names}


def _check(counts: Mapping[str, int], partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise LookoutRuntimeError(f"{partitions} partitions: give a number from 1 to {MOST_PARTITIONS}")
    # Among topics with the same number, name that of the cameras' segments: users know it.
    name, count = max(counts.items(), key=lambda item: (item[1], item[0] == SEGMENTS.name))
    if count > partitions:
        raise LookoutRuntimeError(
            f"{name} has {count} partitions, more than {partitions}: Kafka cannot remove partitions"
        )


def _add(admin: AdminClient, names: Collection[str], partitions: int) -> None:
    """Add partitions to these topics, and wait until the brokers' metadata shows them.

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
    """The partitions that cameras are in, according to decode's checkpoints."""

    _of: dict[str, dict[int, DecodeState]] = field(default_factory=dict)

    def note(self, camera: str, partition: int, state: DecodeState | None) -> None:
        """Record the newest checkpoint of a camera in a partition; None: the camera is forgotten there."""
        places = self._of.setdefault(camera, {})
        if state is not None and state.epoch:
            places[partition] = state
            return
        places.pop(partition, None)
        if not places:
            del self._of[camera]

    def departures(self) -> list[Departure]:
        """Return cameras whose segments arrive in another partition.

        A camera has left a partition if nothing arrived there since its epoch in the other one began, or for
        `QUIET_MS`. The second condition is needed because a segment that is sent again may open an epoch in
        the old partition after the notice.
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
        """Read checkpoints for `wait_s`, then notify the partitions that cameras have left.

        Returns:
            The departures that were written now; their records are on the brokers.

        Raises:
            LookoutRuntimeError: Kafka does not take a record.
        """
        until = self._clock() + wait_s
        while (left_s := until - self._clock()) > 0:
            message = self._reader.record(min(left_s, 0.5))
            while message is not None:
                self._take(message)
                message = self._reader.record(0.0)
        return self._tell()

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _take(self, message: Message) -> None:
        record, state = record_of(message), decode_state(message)
        rejected = state is None and message.value() is not None
        if not rejected and not record.raw_key:  # no camera has a key that is not UTF-8
            self._places.note(record.camera, record.partition, state)

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
    """Return decode's part of a checkpoint; None if the checkpoint is deleted or invalid."""
    try:
        return None if message.value() is None else received(Checkpoint, record_of(message)).decode
    except WireError:
        return None
