"""Reports batches of records that the client cannot read, then skips each with one dead letter.

Such a batch is damaged, or exceeds the size of a fetch when it is decompressed. The client reports its first
offset at every attempt, and reads nothing after it. The client does not report the batch's end, so this
module searches for it: reading at an offset within the batch fails with the same first offset, and reading
after the batch succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lookout.runtime.observe import logs
from lookout.runtime.observe.health import Health
from lookout.runtime.worker.partitions import Partition, UnreadableBatch
from lookout.runtime.worker.records import DeadLetter, Record, Result, Slot

#: seconds before the batch becomes a dead letter, because another broker may have an undamaged copy
PATIENCE_S = 30.0
REASON = "unreadable"
_PART = "records"

_log = logs.get("unreadable")


class UnreadableBatches:
    """Tracks the batches that cannot be read. Only the polling thread calls it.

    Args:
        topic: The input topic.
        current: The worker's partitions.
        health: Blocked while a batch cannot be read.
        high: Returns the offset after a partition's last record, if the client knows it.
        finished: Called with a partition that has a dead letter to commit.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        topic: str,
        current: Mapping[int, Partition],
        health: Health,
        *,
        high: Callable[[int], int | None],
        finished: Callable[[Partition], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._current, self._health = topic, current, health
        self._high, self._finished, self._clock = high, finished, clock
        self._reported = False

    def met(self, number: int, offset: int, why: str) -> None:
        """Note that the client cannot read the batch that begins at `offset` of a partition."""
        partition = self._current.get(number)
        if partition is None or not partition.in_place:
            return
        batch = partition.unreadable
        if batch is not None and batch.tried is not None:
            self._narrow(partition, batch, within=offset == batch.first)
        elif batch is None or batch.first != offset:
            position = partition.read_to if partition.read_to is not None else partition.committed
            partition.unreadable = UnreadableBatch(offset, why, self._clock(), max(offset, position or 0))
        else:
            batch.repeats = True
            self.tell()
            if self._clock() - batch.since >= PATIENCE_S:
                batch.after = self._high(number)
                if batch.after is not None and batch.after > batch.within:
                    self._try(partition, batch)

    def passed(self, partition: Partition) -> bool:
        """Note that a record, or the end of the partition, was read.

        Returns:
            Whether this was only a step of the search for a batch's end; the record will then be read again.
        """
        batch = partition.unreadable
        if batch is None:
            if self._reported:
                self.tell()
            return False
        if batch.tried is None:
            partition.unreadable = None
            self.tell()
            return False
        self._narrow(partition, batch, within=False)
        return True

    def tell(self) -> None:
        """Update `/readyz` with the batches that cannot be read."""
        faults = [
            f"{self._topic} [{number}] cannot be read at offset {partition.unreadable.first}: "
            f"{partition.unreadable.why}"
            for number, partition in sorted(self._current.items())
            if partition.unreadable is not None and partition.unreadable.repeats
        ]
        self._reported = bool(faults)
        if faults:
            self._health.block(
                _PART, f"{'; '.join(faults)}. After {PATIENCE_S:g} s, the batch becomes a dead letter"
            )
        else:
            self._health.clear(_PART)

    def _narrow(self, partition: Partition, batch: UnreadableBatch, *, within: bool) -> None:
        assert batch.tried is not None
        if within:
            batch.within = batch.tried
        else:
            batch.after = batch.tried
        self._try(partition, batch)

    def _try(self, partition: Partition, batch: UnreadableBatch) -> None:
        """Try the middle of the range in which the batch may end, or skip the batch if its end is known."""
        assert batch.after is not None
        if batch.after - batch.within > 1:
            batch.tried = partition.seek_to = (batch.within + batch.after) // 2
            return
        _log.error(
            "records cannot be read and are skipped",
            topic=self._topic,
            partition=partition.number,
            first=batch.first,
            last=batch.within,
            why=batch.why,
        )
        detail = f"offsets {batch.first} to {batch.within} cannot be read: {batch.why}"
        record = Record(
            self._topic, partition.number, batch.within, "", b"", timestamp_ms=partition.record_ms
        )
        slot = Slot("", record, result=Result(dead_letter=DeadLetter(REASON, detail)))
        partition.add(slot).waiting.pop()
        partition.read_to = partition.seek_to = batch.after
        partition.unreadable = None
        self.tell()
        self._finished(partition)
