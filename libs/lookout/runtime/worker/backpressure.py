"""Which partitions are read: nothing is read that cannot be used, and none uses the space of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from lookout.runtime.worker.partitions import Partition

# The polling thread turns up to a hundred times a second while work is under way: what follows costs a walk
# over all partitions, and the second interval a question to the handler's store, which takes its lock.
UPDATE_EVERY_S = 0.02
ASK_EVERY_S = 0.05


class Pausable(Protocol):
    """What is read (`Source`)."""

    def pause(self, numbers: Collection[int]) -> None: ...
    def resume(self, numbers: Collection[int]) -> None: ...
    def reads(self, number: int) -> bool: ...
    def place(self, number: int, offset: int) -> bool: ...


class Backpressure:
    """Pauses and resumes partitions. Only the polling thread calls it.

    The bytes that a process reads ahead are shared evenly by its partitions; each may always hold one record.

    Args:
        source: what is paused.
        records: of one partition, read ahead of their commit.
        bytes_: of all partitions, read ahead of their commit.
        over_budget: partitions that the handler wants to stop for now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: Pausable,
        *,
        records: int,
        bytes_: int,
        over_budget: Callable[[], Collection[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._records = records
        self._bytes = bytes_
        self._over_budget = over_budget
        self._clock = clock
        self._full: frozenset[int] = frozenset()
        self._asked_at = self._updated_at = float("-inf")
        self.paused: set[int] = set()

    def gone(self, number: int) -> None:
        """The partition is another worker's."""
        self.paused.discard(number)

    def update(self, partitions: Mapping[int, Partition]) -> set[int]:
        """Go to places, pause and resume as needed; the partitions that are read, or read on, from now on."""
        now = self._clock()
        if now - self._updated_at < UPDATE_EVERY_S:
            return set()
        self._updated_at = now
        if now - self._asked_at > ASK_EVERY_S:
            self._full, self._asked_at = frozenset(self._over_budget()), now
        placed = set()
        for partition in partitions.values():
            if (
                partition.seek_to is not None
                and partition.loaded
                and self._source.place(partition.number, partition.seek_to)
            ):
                partition.seek_to = None
                placed.add(partition.number)
        # A share for each, not one budget for all: large segments of a camera would pause every partition.
        share = self._bytes / max(1, len(partitions))
        paused = {
            number
            for number, partition in partitions.items()
            if self._source.reads(number) and self._must_wait(partition, share)
        }
        # A partition that was placed is resumed by its new start: the client's pause of before is gone.
        self.paused = (self.paused & set(partitions)) - placed
        stopped, resumed = paused - self.paused, self.paused - paused
        if stopped:
            self._source.pause(stopped)
        if resumed:
            self._source.resume(resumed)
        self.paused = paused
        return resumed | placed

    def _must_wait(self, partition: Partition, share: float) -> bool:
        if not partition.in_place or partition.number in self._full:
            return True
        return len(partition.slots) >= self._records or (bool(partition.slots) and partition.bytes >= share)
