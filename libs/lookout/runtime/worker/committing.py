"""Decides when finished slots are committed, and handles the outcome of their transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from lookout.runtime.observe import logs
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Handler, Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.transactions import Ended, Transaction, TransactionResult

MAX_SLOTS = 500  # of one partition in one transaction
HANG_S = 5.0  # beyond the transaction's own time
#: seconds that checkpoints and offsets without outputs may wait; a crash repeats at most this much work
UNAWAITED_S = 2.0
#: minimum time between the starts of two transactions, as a share of the latency
_INTERVAL_SHARE = 1 / 3


class RunsTransactions(Protocol):
    """Runs transactions to their end (`Committer`)."""

    def submit(self, transaction: Transaction) -> None: ...
    def replace(self, transaction: Transaction) -> None: ...


class Commits:
    """Commits finished slots, one transaction at a time. Only the polling thread calls it.

    A transaction with many records costs Kafka and this process no more than one with a single record, so
    results are gathered:

    | finished work                           | how long it waits to be committed with other work           |
    | --------------------------------------- | ----------------------------------------------------------- |
    | results of the pipeline's first stage   | `latency_s`; less if they come from a backlog               |
    | results of later stages                 | while other records compute, at most a third of `latency_s` |
    | checkpoints and offsets without outputs | `UNAWAITED_S`                                               |

    Records that the first stage commits together also reach the later stages together. In every stage, two
    transactions begin at least a third of `latency_s` apart, and all waiting work joins the next transaction.
    A partition that is paused, or has read half of the records that it may read ahead, does not wait.

    Args:
        committer: runs transactions.
        handler: is told which outputs are durable, and which will never be written.
        refusals: what Kafka has rejected; a record's entry is removed when the record is committed.
        metrics: updated at each commit.
        latency_s: seconds that a record may wait to be committed with others.
        first: whether this is the pipeline's first stage.
        in_flight: maximum number of uncommitted records per partition.
        paused: returns the partitions that are paused until something is committed.
        timeout_s: seconds that a transaction may take.
        again: called with a partition, its slots that were not committed, and whether Kafka must be asked
            whether they were committed after all.
        clock: monotonic seconds.
        wall: Unix seconds.
    """

    def __init__(
        self,
        committer: RunsTransactions,
        handler: Handler[Any],
        refusals: Refusals,
        metrics: Metrics,
        *,
        latency_s: float,
        first: bool,
        in_flight: int,
        paused: Callable[[], Collection[int]],
        timeout_s: float,
        again: Callable[[Partition, list[Slot], bool], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._committer = committer
        self._handler = handler
        self._refusals = refusals
        self._metrics = metrics
        self._latency_s = latency_s
        self._interval_s = latency_s * _INTERVAL_SHARE
        self._first = first
        self._half_full = max(1, in_flight // 2)
        self._paused = paused
        self._timeout_s = timeout_s
        self._again = again
        self._clock = clock
        self._wall = wall
        self._log = logs.get("committing")
        self._due: dict[Partition, float] = {}  # when what each partition has finished must be committed
        self._awaited = False  # some are results of a later stage, which wait only while others compute
        self._began = float("-inf")
        self._deadline = float("inf")
        self.transaction: Transaction | None = None

    def may_have(self, partition: Partition) -> None:
        """Note that a slot of `partition` is finished, so the partition may have something to commit."""
        now, due = self._clock(), float("inf")
        for slot in partition.prefix():
            awaited = slot.result is not None and slot.result.awaited
            if slot.due is None:
                slot.due = now + (self._patience_s(slot) if awaited else UNAWAITED_S)
            due = min(due, slot.due)
            self._awaited = self._awaited or (awaited and not self._first)
        if due < float("inf"):
            self._due[partition] = now if len(partition.slots) >= self._half_full else due

    def _patience_s(self, slot: Slot) -> float:
        """Return the seconds that an awaited result may wait from now on."""
        if not self._first:
            return self._interval_s
        # Records from a backlog wait less, or not at all. The time stamp comes from another machine's clock,
        # so the wait is limited to `latency_s` in any case.
        age_s = self._wall() - slot.arrived_ms / 1000 if slot.arrived_ms else 0.0
        return min(max(0.0, 2 * self._latency_s - age_s), self._latency_s)

    def wait_s(self, *, computing: bool = False) -> float | None:
        """Return the seconds until finished slots must be committed; None if there are none.

        Args:
            computing: whether other records are being computed.
        """
        if self.transaction is not None or not self._due:
            return None
        at_once = self._awaited and not computing
        due = self._began + self._interval_s
        return max(0.0, (due if at_once else max(due, min(self._due.values()))) - self._clock())

    def step(
        self,
        metadata: Callable[[], object],
        kafka_up: bool,
        *,
        computing: bool = False,
        at_once: bool = False,
    ) -> None:
        """Start a transaction if one is due, or check on the running one.

        Args:
            metadata: returns the group's metadata; called when a transaction begins.
            kafka_up: whether Kafka answers; a client that hangs although Kafka answers is replaced.
            computing: whether other records are being computed.
            at_once: whether to commit without waiting for other work.
        """
        now = self._clock()
        if self.transaction is not None:
            if kafka_up and now > self._deadline:
                self._deadline = now + HANG_S + 2 * self._timeout_s
                # The deadline was extended first, so that the new client has time before it counts as
                # hanging, too.
                self._committer.replace(self.transaction)
            return
        if not self._due or not (at_once or self._must_begin(now, computing)):
            return
        batch = self._batch()
        if any(slot.record is not None or not _empty(slot) for _, slots in batch for slot in slots):
            self._began = now
            self._deadline = now + HANG_S + self._timeout_s
            self.transaction = Transaction(batch, metadata())
            self._committer.submit(self.transaction)

    def _must_begin(self, now: float, computing: bool) -> bool:
        if now < self._began + self._interval_s:
            return False
        if now >= min(self._due.values()) or (self._awaited and not computing):
            return True
        paused = self._paused()
        return any(partition.number in paused for partition in self._due)

    def kafka_is_back(self) -> None:
        """Restart the deadline of a transaction that could not continue during an outage."""
        self._deadline = self._clock() + HANG_S + self._timeout_s

    def give_up(self, why: str, numbers: Iterable[int] | None = None) -> None:
        """Abort the running transaction if it covers one of the partitions `numbers` (None: any)."""
        if self.transaction is None:
            return
        partitions = None if numbers is None else set(numbers)
        if partitions is None or any(
            partition.number in partitions for partition, _ in self.transaction.batch
        ):
            self.transaction.give_up(why)

    def end(self, event: Ended) -> None:
        """Handle the end of the transaction. Raises errors that must end the process."""
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
        # Sorted by number, so that a batch writes the same records in the same order at every attempt.
        for partition in sorted(self._due, key=lambda partition: partition.number):
            if partition.dead:
                continue
            if slots := partition.finished(MAX_SLOTS):
                batch.append((partition, slots))
        self._due, self._awaited = {}, False
        for partition, slots in batch:
            if len(slots) == MAX_SLOTS:  # it may have more
                self.may_have(partition)
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
        if result.then is not None:
            result.then()
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
    """Tell the handler about outputs that will never be written."""
    outputs = [output for slot in slots if slot.result is not None for output in slot.result.outputs]
    if outputs:
        handler.dropped(outputs)


def _empty(slot: Slot) -> bool:
    return slot.result is None or slot.result.empty
