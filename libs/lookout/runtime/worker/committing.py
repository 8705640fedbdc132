"""When finished slots are committed, and what follows from how their transaction ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lookout.runtime.observe import logs
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Handler, Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.transactions import Ended, Transaction, TransactionResult

MAX_SLOTS = 500  # of one partition in one transaction
HANG_S = 5.0  # beyond the transaction's own time


class RunsTransactions(Protocol):
    """What brings transactions to their end (`Committer`)."""

    def submit(self, transaction: Transaction) -> None: ...
    def replace(self, transaction: Transaction) -> None: ...


class Commits:
    """One transaction at a time. Only the polling thread calls it.

    A finished slot is committed at once, unless the last transaction began less than `interval_s` ago: then
    it waits for the rest of the interval, together with what finishes meanwhile.

    Args:
        committer: runs transactions.
        handler: is called with what is durable and with what will never be written.
        refusals: forgotten once their record is committed.
        metrics: counted here, at the commit.
        interval_s: between the beginnings of two transactions.
        timeout_s: of a transaction.
        again: called with a partition, its slots that were not committed, and whether Kafka has to be asked
            what was.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        committer: RunsTransactions,
        handler: Handler[Any],
        refusals: Refusals,
        metrics: Metrics,
        *,
        interval_s: float,
        timeout_s: float,
        again: Callable[[Partition, list[Slot], bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committer = committer
        self._handler = handler
        self._refusals = refusals
        self._metrics = metrics
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._again = again
        self._clock = clock
        self._log = logs.get("committing")
        self._finished: set[Partition] = set()  # may have a finished prefix
        self._began = float("-inf")
        self._deadline = float("inf")
        self.transaction: Transaction | None = None

    def may_have(self, partition: Partition) -> None:
        """A slot of `partition` is finished."""
        self._finished.add(partition)

    def wait_s(self) -> float | None:
        """Seconds until something finished may be committed; None: nothing waits for that."""
        if self.transaction is not None or not self._finished:
            return None
        return max(0.0, self._began + self._interval_s - self._clock())

    def step(self, metadata: Callable[[], object], kafka_up: bool, *, at_once: bool = False) -> None:
        """Begin a transaction if there is something to commit, or watch the one that runs.

        Args:
            metadata: the group's, asked for when a transaction begins.
            kafka_up: whether Kafka answers; a client that hangs while it does is replaced.
            at_once: without waiting for the interval.
        """
        now = self._clock()
        if self.transaction is not None:
            if kafka_up and now > self._deadline:
                self._deadline = now + HANG_S + 2 * self._timeout_s
                # The deadline was moved on first: the new client needs its own time before it, too, counts
                # as hanging.
                self._committer.replace(self.transaction)
            return
        if not self._finished or (not at_once and now < self._began + self._interval_s):
            return
        batch = self._batch()
        if any(slot.record is not None or not _empty(slot) for _, slots in batch for slot in slots):
            self._began = now
            self._deadline = now + HANG_S + self._timeout_s
            self.transaction = Transaction(batch, metadata())
            self._committer.submit(self.transaction)

    def kafka_is_back(self) -> None:
        """A transaction that could not go on gets its full time again."""
        self._deadline = self._clock() + HANG_S + self._timeout_s

    def give_up(self, why: str, numbers: Iterable[int] | None = None) -> None:
        """Abort the transaction that runs, if it is over one of the partitions `numbers` (None: any)."""
        if self.transaction is None:
            return
        partitions = None if numbers is None else set(numbers)
        if partitions is None or any(
            partition.number in partitions for partition, _ in self.transaction.batch
        ):
            self.transaction.give_up(why)

    def end(self, event: Ended) -> None:
        """Take the end of the transaction. Raises what must end the process."""
        self.transaction = None
        outcome = "failed" if event.error is not None else event.outcome.name.lower()
        self._metrics.transactions.labels(self._metrics.stage, outcome).inc()
        if event.error is not None:
            raise event.error
        if event.outcome is TransactionResult.COMMITTED:
            self._on_committed(event.transaction)
            return
        self._log.warning(
            "transaction not committed, reading again from the committed offsets",
            why=event.transaction.why,
            outcome=outcome,
        )
        for partition, slots in event.transaction.batch:
            discard(self._handler, slots)
            if not partition.dead:
                self._again(partition, slots, event.outcome is TransactionResult.UNKNOWN)

    def _batch(self) -> list[tuple[Partition, list[Slot]]]:
        batch = []
        # In the order of their numbers: one batch writes the same records in the same order at every try.
        for partition in sorted(self._finished, key=lambda each: each.number):
            if partition.dead:
                continue
            if slots := partition.finished(MAX_SLOTS):
                batch.append((partition, slots))
        # Only a partition cut off at the limit may have more; the others are named again by their next
        # finished slot.
        self._finished = {partition for partition, slots in batch if len(slots) == MAX_SLOTS}
        return batch

    def _on_committed(self, transaction: Transaction) -> None:
        self._metrics.commit_seconds.labels(self._metrics.stage).observe(self._clock() - transaction.started)
        for topic in transaction.outputs:
            self._metrics.outputs.labels(self._metrics.stage, topic).inc()
        for partition, slots in transaction.batch:
            partition.apply(slots)
            for slot in slots:
                self._count(slot)
        if transaction.deliveries:
            self._handler.committed(transaction.deliveries)

    def _count(self, slot: Slot) -> None:
        metrics, stage, result = self._metrics, self._metrics.stage, slot.result
        assert result is not None
        for event, number in result.counts.items():
            metrics.events.labels(stage, event).inc(number)
        if result.forget:
            metrics.forgotten.labels(stage).inc()
        if slot.record is None:
            return
        self._refusals.committed(slot.record)
        metrics.records.labels(stage).inc()
        metrics.wait_seconds.labels(stage).observe(self._clock() - slot.received)
        if slot.arrived_ms:
            metrics.latency_seconds.labels(stage).observe(max(0.0, time.time() - slot.arrived_ms / 1000))
        if result.dead_letter is not None:
            metrics.dead_letters.labels(stage, result.dead_letter.reason).inc()


def discard(handler: Handler[Any], slots: Iterable[Slot]) -> None:
    """Tell the handler of results that will never be written."""
    outputs = [output for slot in slots if slot.result is not None for output in slot.result.outputs]
    if outputs:
        handler.dropped(outputs)


def _empty(slot: Slot) -> bool:
    return slot.result is None or slot.result.empty
