"""Partitions that stand still while others of the same stage go on: one record holds up the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lookout.wire import RECORDING_FLOWS, Flow

#: seconds without a commit, with records to read, since another partition of the stage began to commit
LONGEST_S: Final = 10.0
#: seconds after the first commit that follows a kill in which the next process takes over its partitions
TAKEOVER_S: Final = 30.0
#: groups whose tensors a group reads, and those that read its own, of which its store holds so many only:
#: where they were killed, it waits for them
_WAITS_FOR: Final = {
    "decode": ("prune-encode",),
    "prune-encode": ("decode", "prefill"),
    "prefill": ("decode", "prune-encode"),
    "recordings": ("decode", "prune-encode"),
}
#: seconds without a commit of the whole stage after which nobody holds anybody up
_SILENT_S: Final = 2.0


class Standstill:
    """Follows what groups commit, once a second, on a thread of its own.

    Args:
        bootstrap: The broker.
        options: librdkafka options with which one may read there.
        flows: Whose groups.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, Any], flows: tuple[Flow, ...]) -> None:
        self.found: dict[tuple[str, int], float] = {}
        self._flows, self._stopped = flows, threading.Event()
        self._options = {"bootstrap.servers": bootstrap, "enable.auto.commit": False, **options}
        self._options["enable.partition.eof"] = True
        self._killed: set[str] = set()  # groups that have not committed since
        self._since: dict[tuple[str, int], _Place] = {}
        self._moved_at: dict[str, float] = {}
        self._back_at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="standstill", daemon=True)
        self._thread.start()

    def killed(self, group: str) -> None:
        """A process of a group was killed: the next one loads for a while."""
        self._killed.add(group)

    def close(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join(60.0)

    def jobs(self) -> list[str]:
        """Partitions of recording jobs that stood still."""
        groups = {flow.group for flow in RECORDING_FLOWS}
        return [self._text(place) for place in sorted(self.found) if place[0] in groups]

    def partitions(self) -> dict[int, str]:
        """Partitions of cameras that stood still, and where."""
        groups = {flow.group for flow in RECORDING_FLOWS}
        return {place[1]: self._text(place) for place in sorted(self.found) if place[0] not in groups}

    def _text(self, place: tuple[str, int]) -> str:
        return f"{place[0]} [{place[1]}] stood still for {self.found[place]:.0f} s"

    def _run(self) -> None:
        consumers = {flow: Consumer({**self._options, "group.id": flow.group}) for flow in self._flows}
        while not self._stopped.wait(1.0):
            for flow, consumer in consumers.items():
                try:
                    self._look(flow, consumer)
                except KafkaException:
                    continue  # the broker is asked again in a second
        for consumer in consumers.values():
            consumer.close()

    def _look(self, flow: Flow, consumer: Consumer) -> None:
        topic, now = flow.source.name, time.monotonic()
        numbers = consumer.list_topics(topic, timeout=5.0).topics[topic].partitions
        places = consumer.committed([TopicPartition(topic, number) for number in numbers], timeout=5.0)
        behind = {}
        for place in places:
            offset = max(0, place.offset)
            _, high = consumer.get_watermark_offsets(place, timeout=5.0)
            waits = offset < high
            if waits and self._seems_held(flow.group, place.partition, now):
                # The end of a transaction takes an offset and is no record.
                waits = _has_record(consumer, topic, place.partition, offset)
            behind[place.partition] = offset, waits
        self.note(flow.group, behind, now)

    def _seems_held(self, group: str, number: int, now: float) -> bool:
        place = self._since.get((group, number))
        return place is not None and place.others_since is not None and now - place.others_since > LONGEST_S

    def note(self, group: str, behind: Mapping[int, tuple[int, bool]], now: float) -> None:
        """Take one look at a group.

        Args:
            group: Its name.
            behind: By partition the committed offset, and whether there are records behind it.
            now: Monotonic seconds.
        """
        places = {number: self._since.setdefault((group, number), _Place()) for number in behind}
        moved = {number for number, (offset, _) in behind.items() if places[number].offset != offset}
        if moved:
            self._moved_at[group] = now
            if group in self._killed:
                self._killed.discard(group)
                self._back_at[group] = now
        loading = any(
            name in self._killed or now - self._back_at.get(name, -TAKEOVER_S) < TAKEOVER_S
            for name in (group, *_WAITS_FOR.get(group, ()))
        )
        for number, (offset, waits) in behind.items():
            place = places[number]
            if number in moved or not waits or loading:
                place.offset, place.others_since = offset, None
            elif moved and place.others_since is None:
                place.others_since = now
            alive = now - self._moved_at.get(group, float("-inf")) <= _SILENT_S
            if alive and place.others_since is not None and now - place.others_since > LONGEST_S:
                seconds = now - place.others_since
                self.found[group, number] = max(self.found.get((group, number), 0.0), seconds)


def _has_record(consumer: Consumer, topic: str, number: int, offset: int) -> bool:
    """Whether a record that counts stands at an offset or after it."""
    consumer.assign([TopicPartition(topic, number, offset)])
    try:
        message = consumer.poll(5.0)
        return message is not None and message.error() is None
    finally:
        consumer.unassign()


@dataclass(slots=True)
class _Place:
    """A partition. others_since: when another one committed first while this one did not."""

    offset: int = -1
    others_since: float | None = None
