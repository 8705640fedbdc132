"""Pauses and resumes partitions, so that records are fetched only when they can be used soon, and partitions
share memory fairly."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from lookout.runtime.worker.partitions import Partition

# Under load, the polling thread runs up to a hundred loops per second. Each update visits all partitions, and
# `over_budget` takes the lock of the handler's store, so both are called less often.
UPDATE_EVERY_S = 0.02
ASK_EVERY_S = 0.05


class Pausable(Protocol):
    """The consumer whose partitions are paused (`Source`)."""

    def pause(self, numbers: Collection[int]) -> None: ...
    def resume(self, numbers: Collection[int]) -> None: ...
    def reads(self, number: int) -> bool: ...
    def place(self, number: int, offset: int) -> bool: ...


class Backpressure:
    """Pauses and resumes partitions. Only the polling thread calls it.

    The byte budget is divided evenly between the process's partitions. Each partition may always hold one
    record.

    Args:
        source: the consumer whose partitions are paused.
        records: maximum number of uncommitted records per partition.
        bytes_: maximum bytes of uncommitted records of all partitions.
        over_budget: returns the partitions that the handler wants to be paused.
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
        """Forget a partition that belongs to another worker now."""
        self.paused.discard(number)

    def update(self, partitions: Mapping[int, Partition]) -> set[int]:
        """Seek, pause and resume as needed; return the partitions that start or resume reading."""
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
        # With one budget for all, a camera's large segments would pause every partition.
        share = self._bytes / max(1, len(partitions))
        paused = {
            number
            for number, partition in partitions.items()
            if self._source.reads(number) and self._must_wait(partition, share)
        }
        # The client forgets that a partition was paused when it seeks.
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
