"""Requests of several lanes on one thread: batches, halves, what waits, and what happens when it dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lookout.errors import TransientError
from lookout.models.batching import BatchingThread
from lookout.runtime.worker import Supervisor, ThreadDiedError
from tests.eventually import eventually


class Held:
    """Doubles numbers; its first batch waits until `go`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def compute(self, batch: list[int]) -> list[int]:
        self.batches.append(batch)
        self.started.set()
        assert self.go.wait(60)
        return [2 * each for each in batch]


def ask_in_order(thread: BatchingThread[int, int], held: Held, numbers: Sequence[int]) -> list[Future[int]]:
    """Ask for the first number, and for the others in order while it is computed."""
    pool = ThreadPoolExecutor(len(numbers))
    asked = [pool.submit(thread.ask, numbers[0])]
    assert held.started.wait(60)
    for count, each in enumerate(numbers[1:], 1):
        asked.append(pool.submit(thread.ask, each))
        eventually(lambda count=count: thread.waiting() == count)
    pool.shutdown(wait=False)
    return asked


def test_what_waits_together_is_computed_together() -> None:
    held = Held()
    thread = BatchingThread("twice", held.compute)
    asked = ask_in_order(thread, held, [1, 2, 3, 4])
    held.go.set()
    assert [each.result(60) for each in asked] == [2, 4, 6, 8]
    assert held.batches == [[1], [2, 3, 4]]
    assert (thread.batches, thread.requests) == (2, 4)
    thread.close()


def test_who_is_not_chosen_waits_for_the_next_batch() -> None:
    held = Held()
    odd_first = BatchingThread(
        "odd", held.compute, choose=lambda waiting: [i for i, n in enumerate(waiting) if n % 2] or [0]
    )
    asked = ask_in_order(odd_first, held, [1, 2, 3, 4, 5])
    held.go.set()
    assert [each.result(60) for each in asked] == [2, 4, 6, 8, 10]
    assert held.batches == [[1], [3, 5], [2], [4]]
    odd_first.close()


def test_a_call_runs_on_the_thread_before_the_next_batch() -> None:
    held, said = Held(), []
    thread = BatchingThread("twice", held.compute)
    asked = ask_in_order(thread, held, [1, 2])
    thread.call(lambda: said.append((threading.current_thread().name, len(held.batches))))
    held.go.set()
    assert [each.result(60) for each in asked] == [2, 4]
    assert said == [("twice", 1)]
    thread.close()


@pytest.mark.parametrize("halve", [True, False])
def test_a_fault_in_a_batch(halve: bool) -> None:
    """Halved, it stays its own; else every request of the batch has it."""
    held = Held()

    def no_threes(batch: list[int]) -> list[int]:
        answers = held.compute(batch)
        if 3 in batch:
            raise ValueError("three")
        return answers

    thread = BatchingThread("twice", no_threes, halve=halve)
    asked = ask_in_order(thread, held, [1, 2, 3, 4, 5])
    held.go.set()
    got = [each.exception(60) or each.result() for each in asked]
    if halve:
        assert [str(each) for each in got] == ["2", "4", "three", "8", "10"]
        assert held.batches == [[1], [2, 3, 4, 5], [2, 3], [2], [3], [4, 5]]
    else:
        assert [str(each) for each in got] == ["2", *["three"] * 4]
        assert held.batches == [[1], [2, 3, 4, 5]]
    assert thread.ask(7) == 14
    thread.close()


def test_too_little_memory_for_a_batch_is_enough_for_its_halves() -> None:
    held = Held()

    def small(batch: list[int]) -> list[int]:
        answers = held.compute(batch)
        if len(batch) > 2:
            raise MemoryError
        return answers

    thread = BatchingThread("twice", small, halve=True)
    asked = ask_in_order(thread, held, [1, 2, 3, 4, 5, 6])
    held.go.set()
    assert [each.result(60) for each in asked] == [2, 4, 6, 8, 10, 12]
    assert [len(batch) for batch in held.batches] == [1, 5, 2, 3, 1, 2]
    thread.close()


def test_closing_refuses_what_waits_and_what_comes() -> None:
    held = Held()
    thread = BatchingThread("twice", held.compute)
    asked = ask_in_order(thread, held, [1, 2])
    closing = threading.Thread(target=thread.close)
    closing.start()
    eventually(lambda: thread.waiting() == 2)
    held.go.set()
    closing.join(60)
    assert asked[0].result(60) == 2
    with pytest.raises(TransientError, match="'twice' is closed"):
        asked[1].result(60)
    with pytest.raises(TransientError, match="closed"):
        thread.ask(3)


@pytest.mark.parametrize("dies_in", ["compute", "choose", "call"])
def test_a_thread_that_dies_tells_the_supervisor_and_everyone_who_waits(dies_in: str) -> None:
    held, supervisor = Held(), Supervisor()

    def exits(*_: object) -> list[int]:
        raise SystemExit("the library gave up")

    def compute(batch: list[int]) -> list[int]:
        answers = held.compute(batch)
        return exits() if dies_in == "compute" else answers

    choose = exits if dies_in == "choose" else None
    if dies_in == "choose":
        thread = BatchingThread("twice", compute, choose=choose, supervisor=supervisor)
        with pytest.raises(TransientError):
            thread.ask(1)
    else:
        thread = BatchingThread("twice", compute, supervisor=supervisor)
        asked = ask_in_order(thread, held, [1, 2, 3])
        supervisor.check()
        if dies_in == "call":
            thread.call(exits)
        held.go.set()
        answered = [each for each in asked if each.exception(60) is None]
        assert len(answered) == (1 if dies_in == "call" else 0)
        assert all(isinstance(each.exception(), TransientError) for each in asked if each not in answered)
    with pytest.raises(TransientError):
        thread.ask(4)
    thread.close()
    with pytest.raises(ThreadDiedError, match="'twice' died"):
        supervisor.check()


LEFT_OPEN = """
import threading, torch
from lookout.models.batching import BatchingThread

begun = threading.Event()

def compute(batch):
    begun.set()
    for _ in range(2000):
        torch.ones(200, 200).mm(torch.ones(200, 200))
    print("computed", flush=True)
    return batch

thread = BatchingThread("engine", compute)
thread.submit(1)
begun.wait()
raise KeyboardInterrupt
"""


@pytest.mark.slow
def test_a_program_that_is_interrupted_while_a_batch_runs_ends_as_python_ends_it() -> None:
    command = [sys.executable, "-c", LEFT_OPEN]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "terminate called" not in ended.stderr
    assert ended.stdout == "computed\n"
    assert ended.returncode == -2, ended.stderr
