"""The order of work in a partition: a queue per camera, and the finished slots that may be committed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from lookout.runtime.worker.records import Handler, Loss, Slot, StoredCheckpoint
from lookout.v1.state_pb2 import Checkpoint

UNLOADED: Any = object()


@dataclass(slots=True)
class Lane:
    """One camera's queue: its records are processed in order, one at a time. While `busy`, a compute thread
    owns `state` and `stored`."""

    camera: str
    partition: Partition
    stored: StoredCheckpoint | None
    state: Any = UNLOADED
    waiting: deque[Slot] = field(default_factory=deque)
    busy: bool = False
    retry_at: float | None = None
    uncommitted: int = 0  # number of uncommitted slots, by which `state` may be ahead of Kafka

    @property
    def idle(self) -> bool:
        """Whether the camera has nothing to do."""
        return not self.busy and not self.waiting

    def give_up(self, handler: Handler[Any]) -> None:
        """Drop the state, and let the handler free what the state holds."""
        state, self.state = self.state, UNLOADED
        if state is not UNLOADED:
            handler.leave(state)


@dataclass(slots=True)
class UnreadableBatch:
    """A batch of records that the client cannot read (`lookout.runtime.worker.unreadable`).

    Attributes:
        first: The batch's first offset.
        why: The client's error.
        since: When the client first reported the batch, monotonic seconds.
        within: The highest offset that is known to be in the batch.
        after: The lowest offset that is known to be after the batch; None before the search for its end.
        tried: The offset that the search tries now; None before the search.
        repeats: Whether the client reported the batch more than once.
    """

    first: int
    why: str
    since: float
    within: int
    after: int | None = None
    tried: int | None = None
    repeats: bool = False


@dataclass(slots=True, eq=False)
class Partition:
    """One assigned partition. When the worker goes back to the committed state, a new object replaces this
    one; the old one is `dead`, and only waits for its compute threads."""

    number: int
    loaded: bool = False
    dead: bool = False
    committed: int | None = None  # next unread offset, as Kafka has it
    committed_ms: int | None = None  # time stamp of the last committed record
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # as committed
    active_ms: dict[str, int] = field(default_factory=dict)  # record time of each camera's newest record
    slots: deque[Slot] = field(default_factory=deque)
    lanes: dict[str, Lane] = field(default_factory=dict)
    bytes: int = 0
    next_tick: float = 0.0
    record_ms: int = 0  # time stamp of the newest record read
    passed_ms: int = 0  # record time that was last reported to idle cameras
    next_passed: float = 0.0
    next_forget: float = 0.0
    at_end: bool = False  # whether the partition has been read to its end
    end: int = (
        0  # the offset of that end; it may be above the last commit, because transactions' ends have offsets
    )
    seek_to: int | None = None  # the offset to read from as soon as the client can seek
    waits_for: str = ""  # why the partition is not taken over yet
    waits_since: float | None = None
    read_to: int | None = None  # the offset after the newest record read
    jump: tuple[int, int] | None = None  # the longest run of offsets skipped since the last call of `lost`
    lost_to: int = 0  # missing offsets below this one have been counted
    loss: Loss | None = None  # the newest run of offsets that retention removed
    unreadable: UnreadableBatch | None = None  # the next batch, if the client cannot read it

    def note_read(self, offset: int, record_ms: int = 0, low: Callable[[], int] = lambda: 0) -> None:
        """Note that a record was read. Skipped offsets are ends of transactions, or records that retention
        removed.

        Args:
            offset: The record's offset.
            record_ms: Its time in Kafka, Unix milliseconds.
            low: Returns the first offset that the topic still holds; called only if more than the end of one
                transaction was skipped.
        """
        start = self.read_to if self.read_to is not None else self.committed
        # Each transaction's end has an offset, so a gap of one is normal and Kafka is not asked.
        if start is not None and offset - start > 1:
            widest = self.jump[1] - self.jump[0] if self.jump else 0
            self.jump = (start, offset) if offset - start > widest else self.jump
            if (lost := min(low(), offset) - start) > 0:
                self.loss = Loss(lost, record_ms)
        self.read_to = offset + 1

    def lost(self, low: int) -> int:
        """Count the offsets that retention removed before they were read.

        Args:
            low: The first offset that the topic still holds.

        Returns:
            Their number since the last call, including ends of transactions. A single missing offset after
            the newest record is not counted, because it is the end of a transaction, for example in an idle
            partition that retention has emptied.
        """
        position = self.read_to if self.read_to is not None else self.committed
        if position is None or not self.loaded:
            return 0
        jump, self.jump = self.jump, None
        count = 0 if jump is None else max(0, min(low, jump[1]) - max(jump[0], self.lost_to))
        if low - position > 1:
            count += max(0, low - max(position, self.lost_to))
        self.lost_to = max(self.lost_to, low)
        return count

    def done_to(self, low: int) -> int:
        """Return the offset below which all records are processed and committed.

        Args:
            low: The first offset that the topic still holds.
        """
        committed = low if self.committed is None else self.committed
        return committed if self.slots else max(committed, self.end)

    @property
    def in_place(self) -> bool:
        """Whether the partition is taken over and no seek is pending."""
        return self.loaded and self.seek_to is None

    def add(self, slot: Slot) -> Lane:
        """Append a slot to the order and to its camera's lane."""
        slot.received = time.monotonic()
        self.slots.append(slot)
        self.bytes += slot.size
        lane = self.lane(slot.camera)
        lane.waiting.append(slot)
        lane.uncommitted += 1
        return lane

    def insert(self, slot: Slot, lane: Lane) -> None:
        """Insert a slot without a record, such as a tick, before its camera's waiting records."""
        slot.received = time.monotonic()
        lane.uncommitted += 1
        if lane.waiting:
            self.slots.insert(self.slots.index(lane.waiting[0]), slot)
        else:
            self.slots.append(slot)

    def lane(self, camera: str) -> Lane:
        """Return the camera's lane, which is created if it does not exist."""
        if camera not in self.lanes:
            self.lanes[camera] = Lane(camera, self, self.stored(camera))
        return self.lanes[camera]

    def stored(self, camera: str) -> StoredCheckpoint | None:
        """Return the camera's committed checkpoint."""
        checkpoint = self.checkpoints.get(camera)
        return StoredCheckpoint(checkpoint, self.number) if checkpoint is not None else None

    def prefix(self) -> Iterator[Slot]:
        """Return the finished slots before the first unfinished one."""
        return takewhile(lambda slot: slot.result is not None, self.slots)

    def finished(self, limit: int) -> list[Slot]:
        """Remove and return the finished slots before the first unfinished one, at most `limit`."""
        taken: list[Slot] = []
        while self.slots and self.slots[0].result is not None and len(taken) < limit:
            slot = self.slots.popleft()
            self.bytes -= slot.size
            taken.append(slot)
        return taken

    def apply(self, slots: list[Slot]) -> None:
        """Record that `slots` are committed: a rewind returns to this state."""
        for slot in slots:
            result = slot.result
            assert result is not None
            if (lane := self.lanes.get(slot.camera)) is not None:
                lane.uncommitted -= 1
            if slot.record is not None:
                self.committed = slot.record.offset + 1
                self.committed_ms = slot.record.timestamp_ms
                if slot.camera:
                    self.active_ms[slot.camera] = slot.record.timestamp_ms
            if result.forget:
                self._forget(slot.camera)
            elif result.checkpoint is not None and slot.camera:
                self.checkpoints[slot.camera] = result.checkpoint
            elif slot.camera not in self.checkpoints:
                self._forget(slot.camera)  # keys that a producer invents must not take memory

    def _forget(self, camera: str) -> None:
        """Drop a camera's checkpoint and, if it has no work, its lane."""
        self.checkpoints.pop(camera, None)
        self.active_ms.pop(camera, None)
        lane = self.lanes.get(camera)
        if lane is not None and lane.idle and lane.uncommitted <= 0:
            del self.lanes[camera]

    def fresh(self) -> Partition:
        """Return this partition in its committed state, without any records read since."""
        return Partition(
            self.number,
            loaded=self.loaded,
            committed=self.committed,
            committed_ms=self.committed_ms,
            checkpoints=self.checkpoints,
            active_ms=self.active_ms,
            lost_to=self.lost_to,
            loss=self.loss,
        )
