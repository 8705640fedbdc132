"""When finished slots are committed, without a broker: the committer is a fake that the test ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lookout.errors import FencedError
from lookout.runtime.observe import Metrics
from lookout.runtime.worker import DeadLetter, Delivery, Handler, Output, Record, Result
from lookout.runtime.worker.committing import HANG_S, Commits
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.transactions import Ended, Transaction, TransactionResult


class FakeCommitter:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[Transaction] = []
        self.replaced = 0

    def submit(self, transaction: Transaction) -> None:
        self.given.append(transaction)

    def replace(self, transaction: Transaction) -> None:
        self.replaced += 1


class Plain(Handler[None]):
    def __init__(self) -> None:
        self.lost: list[Output] = []
        self.durable: list[Delivery] = []

    def load(self, camera: str, stored: Any) -> None:
        raise AssertionError("commits load no state")

    def handle(self, state: None, record: Record) -> Result:
        raise AssertionError("commits handle no record")

    def dropped(self, outputs: Sequence[Output]) -> None:
        self.lost.extend(outputs)

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        self.durable.extend(deliveries)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.committer, self.handler, self.metrics = FakeCommitter(), Plain(), Metrics("toy")
        self.again: list[tuple[int, int, bool]] = []
        self.commits = Commits(
            self.committer,
            self.handler,
            Refusals(),
            self.metrics,
            interval_s=0.125,
            timeout_s=30.0,
            again=lambda partition, slots, unknown: self.again.append(
                (partition.number, len(slots), unknown)
            ),
            clock=lambda: self.now,
        )
        self.partition = Partition(3, loaded=True)
        self.offset = 0

    def finish(self, **result: Any) -> Slot:
        slot = Slot("cam", Record("in", 3, self.offset, "cam", b"", timestamp_ms=1))
        self.offset += 1
        self.partition.add(slot).waiting.pop()
        slot.result = Result([Output("out", "cam", b"1")], **result)
        self.commits.may_have(self.partition)
        return slot

    def step(self, **more: Any) -> None:
        self.commits.step(lambda: "metadata", True, **more)

    def end(self, outcome: TransactionResult, error: Exception | None = None) -> None:
        transaction = self.commits.transaction
        assert transaction is not None
        transaction.outputs = ["out"] * sum(len(slots) for _, slots in transaction.batch)
        self.commits.end(Ended(transaction, outcome, error))

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"lookout_{name}", {"stage": "toy", **labels}) or 0.0


def test_a_record_is_committed_at_once_when_nothing_was_for_a_while() -> None:
    world = World()
    world.finish()
    assert world.commits.wait_s() == 0.0
    world.step()
    assert len(world.committer.given) == 1


def test_a_trickle_of_records_shares_transactions() -> None:
    """32 records a second, one transaction in an eighth of a second: one for four records."""
    world = World()
    for _ in range(64):
        world.finish()
        world.step()
        if world.commits.transaction is not None:
            world.end(TransactionResult.COMMITTED)
        world.now += 1 / 32
    assert len(world.committer.given) == 16
    assert world.commits.wait_s() is not None


def test_the_rest_of_the_interval_is_not_waited_for_when_a_partition_leaves() -> None:
    world = World()
    world.finish()
    world.step()
    world.end(TransactionResult.COMMITTED)
    world.finish()
    world.step()
    assert len(world.committer.given) == 1
    world.step(at_once=True)
    assert len(world.committer.given) == 2


def test_one_transaction_runs_at_a_time() -> None:
    world = World()
    world.finish()
    world.step()
    world.finish()
    world.now += 1.0
    world.step()
    assert len(world.committer.given) == 1
    world.end(TransactionResult.COMMITTED)
    world.step()
    assert len(world.committer.given) == 2


def test_nothing_is_looked_at_where_nothing_has_finished() -> None:
    world = World()
    world.step()
    assert not world.committer.given
    assert world.commits.wait_s() is None


def test_numbers_are_counted_at_the_commit() -> None:
    world = World()
    world.finish(counts={"frames": 7}, dead_letter=DeadLetter("bad"))
    world.step()
    names = ("records_total", "outputs_total", "dead_letters_total", "events_total")
    labels: list[dict[str, str]] = [{}, {"topic": "out"}, {"reason": "bad"}, {"event": "frames"}]
    assert [world.count(name, **each) for name, each in zip(names, labels, strict=True)] == [0, 0, 0, 0]
    world.end(TransactionResult.COMMITTED)
    assert [world.count(name, **each) for name, each in zip(names, labels, strict=True)] == [1, 1, 1, 7]
    assert world.partition.committed == 1


@pytest.mark.parametrize(
    ("outcome", "unknown"), [(TransactionResult.ABORTED, False), (TransactionResult.UNKNOWN, True)]
)
def test_what_is_not_committed_is_dropped_and_read_again(outcome: TransactionResult, unknown: bool) -> None:
    world = World()
    world.finish(counts={"frames": 7})
    world.step()
    world.end(outcome)
    assert world.again == [(3, 1, unknown)]
    assert len(world.handler.lost) == 1
    assert world.count("events_total", event="frames") == 0
    assert world.count("transactions_total", outcome=outcome.name.lower()) == 1


def test_a_transaction_over_a_lost_partition_is_given_up() -> None:
    world = World()
    world.finish()
    world.step()
    world.commits.give_up("lost", [1, 2])
    assert world.committer.given[0].abandoned == ""
    world.commits.give_up("lost", [3])
    assert world.committer.given[0].abandoned == "lost"


def test_a_client_that_hangs_while_kafka_answers_is_replaced_once_a_timeout() -> None:
    world = World()
    world.finish()
    world.step()
    world.now += 30.0 + HANG_S + 1.0
    world.commits.step(lambda: "metadata", False)
    assert world.committer.replaced == 0
    world.step()
    world.step()
    assert world.committer.replaced == 1


def test_an_error_of_the_committer_ends_the_process() -> None:
    world = World()
    world.finish()
    world.step()
    with pytest.raises(FencedError):
        world.end(TransactionResult.UNKNOWN, FencedError("another"))
    assert world.count("transactions_total", outcome="failed") == 1


def test_a_partition_in_which_only_time_passed_commits_its_offset_again() -> None:
    """So Kafka checks that this worker still owns it: a zombie's ticks are fenced too."""
    partition = Partition(3, loaded=True, committed=17)
    tick = Slot("cam", tick=True, result=Result([Output("out", "cam", b"gap")]))
    transaction = Transaction([(partition, [tick])], "metadata")
    assert [(each.partition, each.offset) for each in transaction.offsets("in")] == [(3, 17)]
