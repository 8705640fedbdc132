"""The order inside a partition: only a finished prefix is ever taken, and a rewind forgets the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.worker import Record, Result, is_transient
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Loss, Slot
from lookout.v1.state_pb2 import Checkpoint


def slot(camera: str, offset: int) -> Slot:
    return Slot(camera, Record("t", 0, offset, camera, bytes(offset)))


def result(mark: int) -> Result:
    checkpoint = Checkpoint()
    checkpoint.decode.next_sample = mark
    return Result(checkpoint=checkpoint)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(12)), st.integers(1, 5), st.data())
def test_only_the_finished_prefix_is_taken(order: list[int], limit: int, data: st.DataObject) -> None:
    """Whatever order records finish in, they are committed in theirs, each once."""
    partition = Partition(0)
    slots = [slot(f"cam-{offset % 3}", offset) for offset in range(12)]
    for each in slots:
        partition.add(each)
    taken: list[Slot] = []
    for finished in order:
        slots[finished].result = result(finished)
        if data.draw(st.booleans()):
            some = partition.finished(limit)
            assert all(each.result is not None for each in some)
            partition.apply(some)
            taken += some
    while some := partition.finished(limit):
        partition.apply(some)
        taken += some
    assert taken == slots
    assert partition.committed == 12
    assert partition.bytes == 0
    assert {name: each.decode.next_sample for name, each in partition.checkpoints.items()} == {
        "cam-0": 9,
        "cam-1": 10,
        "cam-2": 11,
    }


def test_a_rewind_keeps_what_is_committed() -> None:
    partition = Partition(3, loaded=True)
    for offset in range(4):
        partition.add(slot("cam", offset)).partition.slots[offset].result = result(offset)
    partition.apply(partition.finished(2))
    fresh = partition.fresh()
    assert (fresh.number, fresh.committed, fresh.loaded) == (3, 2, True)
    assert not fresh.slots
    assert fresh.lane("cam").stored is not None
    assert fresh.lane("cam").stored.checkpoint.decode.next_sample == 1


def test_forgetting_deletes_the_checkpoint() -> None:
    partition = Partition(0)
    for offset, given_result in enumerate((result(1), Result(forget=True))):
        partition.add(slot("cam", offset))
        partition.slots[-1].result = given_result
    partition.apply(partition.finished(10))
    assert partition.checkpoints == {}


def test_what_networks_raise_is_transient() -> None:
    class StoreConnectionError(ConnectionError):
        pass

    assert is_transient(TransientError("store"))
    assert is_transient(StoreConnectionError())
    assert is_transient(TimeoutError())
    assert not is_transient(BadRecordError("bad"))
    assert not is_transient(ValueError("a bug"))


def test_offsets_that_retention_removed_are_counted_once() -> None:
    partition = Partition(0, loaded=True, committed=10)
    assert partition.lost(4) == 0
    assert partition.lost(25) == 15
    assert partition.lost(25) == 0
    assert partition.fresh().lost(25) == 0
    assert partition.lost(30) == 5


def test_the_end_of_the_last_transaction_of_a_resting_partition_is_not_lost() -> None:
    """Retention empties it, and every process that takes it over sees one offset that nobody read."""
    partition = Partition(0, loaded=True, committed=10)
    assert partition.lost(11) == 0
    assert partition.fresh().lost(11) == 0
    assert Partition(0, loaded=True, committed=10).lost(11) == 0
    assert Partition(0, loaded=True, committed=10).lost(12) == 2
    partition = Partition(0, loaded=True, committed=10)
    partition.note_read(11)  # the next record came before the watermark was known
    assert partition.lost(11) == 0


def test_records_that_were_read_are_not_lost() -> None:
    partition = Partition(0, loaded=True, committed=10)
    for offset in (10, 11, 13, 14):  # 12 is the end of a transaction
        partition.note_read(offset)
    assert partition.lost(5) == 0
    assert partition.lost(14) == 0
    assert Partition(0, loaded=True).lost(99) == 0  # a group that never committed begins at the beginning


def test_what_the_client_passed_over_before_the_watermark_was_known_is_counted() -> None:
    partition = Partition(0, loaded=True, committed=10)
    partition.note_read(25)
    partition.note_read(26)
    assert partition.lost(25) == 15
    assert partition.lost(26) == 0


def test_a_run_of_offsets_that_is_gone_is_told_to_the_records_behind_it() -> None:
    partition = Partition(0, loaded=True, committed=10)
    partition.note_read(12, 100, lambda: 0)  # ends of transactions: the topic still holds them
    assert partition.loss is None
    partition.note_read(40, 200, lambda: 40)
    assert partition.loss == Loss(27, 200)
    partition.note_read(42, 300, lambda: pytest.fail("the end of one transaction is no question to Kafka"))
    assert partition.fresh().loss == Loss(27, 200)
