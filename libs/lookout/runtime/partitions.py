"""The order inside one partition: lanes by camera, and the finished prefix that may be committed."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lookout.runtime.records import Result, Slot, StoredCheckpoint
from lookout.v1.state_pb2 import Checkpoint

UNLOADED: Any = object()


@dataclass(slots=True)
class Lane:
    """One camera: its records in order, one at a time. While `busy` a compute thread owns `state` and
    `stored`.
    """

    camera: str
    partition: Partition
    stored: StoredCheckpoint | None
    state: Any = UNLOADED
    waiting: deque[Slot] = field(default_factory=deque)
    busy: bool = False
    retry_at: float | None = None


@dataclass(slots=True)
class Partition:
    """One assigned partition. A new object takes its place after a seek back; `dead` ones only wait for their
    threads.
    """

    number: int
    loaded: bool = False
    dead: bool = False
    owner_epoch: int = 0
    committed: int | None = None  # next unread offset, as Kafka has it
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # as committed
    slots: deque[Slot] = field(default_factory=deque)
    lanes: dict[str, Lane] = field(default_factory=dict)
    bytes: int = 0
    next_tick: float = 0.0
    record_ms: int = 0  # time stamp of the newest record read
    passed_ms: int = 0  # record time that silent cameras were told last
    next_passed: float = 0.0
    at_end: bool = False  # everything that was in the topic is read
    seek_to: int | None = None  # reading goes on from here as soon as the client lets it

    def add(self, slot: Slot) -> Lane:
        """Append to the order."""
        slot.received = time.monotonic()
        self.slots.append(slot)
        self.bytes += slot.size
        lane = self.lane(slot.camera)
        lane.waiting.append(slot)
        return lane

    def lane(self, camera: str) -> Lane:
        """The camera's lane."""
        if camera not in self.lanes:
            checkpoint = self.checkpoints.get(camera)
            stored = (
                StoredCheckpoint(checkpoint, self.owner_epoch, self.number)
                if checkpoint is not None
                else None
            )
            self.lanes[camera] = Lane(camera, self, stored)
        return self.lanes[camera]

    def oldest_age_s(self, now_s: float) -> float:
        """Seconds since the oldest record that is read and not committed was written; 0 if none is read."""
        written = next((slot.record.timestamp_ms for slot in self.slots if slot.record is not None), None)
        since = written if written is not None else self.record_ms
        return max(0.0, now_s - since / 1000) if since else 0.0

    def finished(self, limit: int) -> list[Slot]:
        """Take the finished prefix, at most `limit` slots."""
        taken: list[Slot] = []
        while self.slots and self.slots[0].result is not None and len(taken) < limit:
            slot = self.slots.popleft()
            self.bytes -= slot.size
            taken.append(slot)
        return taken

    def apply(self, slots: list[Slot]) -> None:
        """`slots` are committed: remember what a rewind goes back to."""
        for slot in slots:
            result: Result | None = slot.result
            assert result is not None
            if slot.record is not None:
                self.committed = slot.record.offset + 1
            if result.forget:
                self.checkpoints.pop(slot.camera, None)
            elif result.checkpoint is not None and slot.camera:
                self.checkpoints[slot.camera] = result.checkpoint

    def fresh(self) -> Partition:
        """The same partition as committed, with nothing read."""
        return Partition(
            self.number,
            loaded=self.loaded,
            owner_epoch=self.owner_epoch,
            committed=self.committed,
            checkpoints=self.checkpoints,
        )
