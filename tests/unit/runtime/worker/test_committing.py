"""When finished slots are committed, without a broker: the committer is a fake that the test ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from lookout.errors import FencedError
from lookout.runtime.observe import Metrics
from lookout.runtime.worker import DeadLetter, Delivery, Handler, Output, Record, Result
from lookout.runtime.worker.committing import HANG_S, UNAWAITED_S, Commits
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.transactions import Ended, Transaction, TransactionResult
from lookout.v1.state_pb2 import Checkpoint


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


LATENCY_S = 0.375  # an eighth of a second between two transactions


class World:
    def __init__(self, *, first: bool = False) -> None:
        self.now = 100.0
        self.paused: set[int] = set()
        self.committer, self.handler, self.metrics = FakeCommitter(), Plain(), Metrics("toy")
        self.again: list[tuple[int, int, bool]] = []
        self.commits = Commits(
            self.committer,
            self.handler,
            Refusals(),
            self.metrics,
            latency_s=LATENCY_S,
            first=first,
            in_flight=16,
            paused=lambda: self.paused,
            timeout_s=30.0,
            again=lambda partition, slots, unknown: self.again.append(
                (partition.number, len(slots), unknown)
            ),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        self.partition = Partition(3, loaded=True)
        self.offset = 0

    def begin(self, *, age_s: float = 0.0) -> Slot:
        arrived_ms = round(1000 * (self.now - age_s))
        slot = Slot("cam", Record("in", 3, self.offset, "cam", b"", timestamp_ms=1), arrived_ms=arrived_ms)
        self.offset += 1
        self.partition.add(slot).waiting.pop()
        return slot

    def end_of(self, slot: Slot, *, outputs: bool = True, **result: Any) -> None:
        slot.result = Result([Output("out", "cam", b"1")] if outputs else [], **result)
        self.commits.may_have(self.partition)

    def finish(self, *, age_s: float = 0.0, outputs: bool = True, **result: Any) -> Slot:
        slot = self.begin(age_s=age_s)
        self.end_of(slot, outputs=outputs, **result)
        return slot

    @property
    def given(self) -> int:
        """Transactions that began."""
        return len(self.committer.given)

    def wait(self, seconds: float) -> float:
        """Turn as the worker does, ending transactions at once, until one begins; how long that took."""
        begun, before = self.now, self.given
        while self.now - begun < seconds and self.given == before:
            self.now += min(0.01, max(0.001, self.commits.wait_s() or 0.01))
            self.step()
        if self.commits.transaction is not None:
            self.end(TransactionResult.COMMITTED)
        return self.now - begun

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


@pytest.mark.parametrize("outcome", [TransactionResult.COMMITTED, TransactionResult.ABORTED])
def test_what_a_result_asks_for_happens_once_it_is_committed(outcome: TransactionResult) -> None:
    world, done = World(), list[str]()
    world.finish(then=lambda: done.append("then"))
    world.step()
    assert done == []
    world.end(outcome)
    assert done == (["then"] if outcome is TransactionResult.COMMITTED else [])


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


def test_the_first_stage_gathers_what_arrives_within_the_latency() -> None:
    """Four segments a second of 8 cameras: two share a transaction, and those of the later stages with it."""
    world = World(first=True)
    batches: list[int] = []
    for _ in range(16):
        world.finish(age_s=0.05)
        for _ in range(25):
            world.now += 0.01
            world.step(computing=False)
            if (transaction := world.commits.transaction) is not None:
                batches.append(sum(len(slots) for _, slots in transaction.batch))
                world.end(TransactionResult.COMMITTED)
    assert batches == [2] * 8


@pytest.mark.parametrize("age_s", [-3600.0, -0.1, 0.0, 0.1, 0.3, 0.5, 1.0, 3600.0])
def test_nothing_waits_longer_than_the_latency(age_s: float) -> None:
    """Whatever the time stamp says, which another machine's clock wrote."""
    world = World(first=True)
    world.finish(age_s=age_s)
    assert world.wait(10.0) <= LATENCY_S + 0.011


@pytest.mark.parametrize("seed", range(8))
def test_random_records_wait_no_longer_than_their_share(seed: int) -> None:
    chance = random.Random(seed)
    world = World(first=bool(seed % 2))
    can_be_committed: dict[int, float] = {}
    most = {True: LATENCY_S if seed % 2 else LATENCY_S / 3, False: UNAWAITED_S}
    committed = 0
    open_slots: list[Slot] = []
    for _ in range(4000):
        if chance.random() < 0.02:
            open_slots.append(world.begin(age_s=chance.choice([0.0, 0.2, 5.0])))
        if open_slots and chance.random() < 0.05:
            slot = open_slots.pop(chance.randrange(len(open_slots)))
            world.end_of(slot, outputs=chance.random() < 0.5)
        for slot in world.partition.prefix():
            can_be_committed.setdefault(id(slot), world.now)
        world.step(computing=bool(open_slots))
        if (transaction := world.commits.transaction) is not None:
            waits = [
                (world.now - can_be_committed.pop(id(slot)), slot)
                for _, slots in transaction.batch
                for slot in slots
            ]
            committed += len(waits)
            # The turn of the loop, and the interval since the transaction before.
            late = [wait for wait, slot in waits if wait > most[_awaited(slot)] + LATENCY_S / 3 + 0.011]
            assert not late
            world.end(TransactionResult.COMMITTED)
        world.now += 0.01
    assert committed > 40


def test_a_backlog_is_not_held_back() -> None:
    world = World(first=True)
    world.finish(age_s=2 * LATENCY_S)
    world.step()
    assert world.given == 1


def test_a_later_stage_waits_only_for_what_computes() -> None:
    world = World()
    world.finish()
    world.step(computing=True)
    assert world.given == 0
    world.finish()
    world.step(computing=False)
    assert [len(slots) for _, slots in world.committer.given[0].batch] == [2]
    world.end(TransactionResult.COMMITTED)
    world.now += 1.0
    world.finish()
    world.now += LATENCY_S / 3 + 0.001
    world.step(computing=True)
    assert world.given == 2


def test_checkpoints_that_nobody_waits_for_share_transactions() -> None:
    """An alerts service without incidents: 32 verdicts a second, a transaction every eighth record read
    ahead (in the test a partition may have 16)."""
    world = World()
    for _ in range(4):
        world.finish(outputs=False, checkpoint=Checkpoint())
        world.step()
    assert world.given == 0
    assert world.wait(10.0) <= UNAWAITED_S + 0.011
    for _ in range(8):
        world.finish(outputs=False, checkpoint=Checkpoint())
    world.now += 1.0
    world.step()
    assert [len(slots) for _, slots in world.committer.given[1].batch] == [8]


@pytest.mark.parametrize("result", [{}, {"dead_letter": DeadLetter("bad"), "outputs": False}])
def test_what_somebody_waits_for_takes_the_rest_along(result: dict[str, Any]) -> None:
    world = World()
    world.finish(outputs=False)
    world.step()
    assert world.given == 0
    world.finish(**result)
    world.step()
    assert [len(slots) for _, slots in world.committer.given[0].batch] == [2]


def test_an_output_after_a_hole_is_awaited_once_the_hole_is_filled() -> None:
    world = World()
    slow = world.begin()
    world.finish()
    world.now += 5.0
    world.step(computing=True)
    assert world.given == 0
    world.end_of(slow, outputs=False)
    world.step()
    assert [len(slots) for _, slots in world.committer.given[0].batch] == [2]


@pytest.mark.parametrize("first", [True, False])
def test_a_partition_that_must_not_read_on_is_committed_at_once(first: bool) -> None:
    world = World(first=first)
    world.finish(outputs=first)
    world.step(computing=True)
    assert world.given == 0
    world.paused = {3}
    world.step(computing=True)
    assert world.given == 1


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


def _awaited(slot: Slot) -> bool:
    assert slot.result is not None
    return slot.result.awaited
