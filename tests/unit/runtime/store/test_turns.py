"""Turns at making tensors."""

import threading

import pytest

from lookout.runtime.store.turns import Turns
from lookout.v1.lineage_pb2 import RecordRef, TensorRef
from tests.eventually import eventually


def ref(partition: int, offset: int) -> TensorRef:
    return TensorRef(
        id=f"{partition}@{offset}", input=RecordRef(topic="in", partition=partition, offset=offset)
    )


def test_the_partition_that_waits_longest_goes_on_by_its_lowest_offset() -> None:
    turns, order = Turns(1), list[str]()

    def work(wanted: TensorRef) -> None:
        with turns.turn(wanted):
            order.append(wanted.id)

    threads = []
    with turns.turn(ref(7, 0)):
        for count, wanted in enumerate((ref(1, 5), ref(0, 9), ref(0, 3), ref(1, 2)), 1):
            threads.append(threading.Thread(target=work, args=(wanted,)))
            threads[-1].start()
            eventually(lambda count=count: len(turns._waiters) == count)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["1@2", "1@5", "0@3", "0@9"]


def test_a_turn_that_does_not_come_in_time_is_given_up() -> None:
    turns = Turns(1)
    with turns.turn(ref(0, 1)):
        with pytest.raises(TimeoutError, match=r"0@2: no slot became free"), turns.turn(ref(0, 2), 0.01):
            pass
        assert turns._waiters == []
    with turns.turn(ref(0, 3), 0.01):  # the slot is free again
        pass


def test_a_failure_frees_the_slot() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="broken"), turns.turn(ref(0, 1)):
        raise ValueError("broken")
    with turns.turn(ref(0, 2), 0.01):
        pass
