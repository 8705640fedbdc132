"""Work that does not end is stopped, or named as what cannot be stopped."""

from __future__ import annotations

import threading

from lookout.runtime.worker import Record
from lookout.runtime.worker.partitions import Lane, Partition
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.watchdog import GRACE_S, OverdueError, Watchdog
from tests.eventually import eventually

LANE = Lane("cam", Partition(0, loaded=True), None)
SLOT = Slot("cam", Record("in", 0, 7, "cam", b""))


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_is_stopped() -> None:
    clock, ended, begun = Clock(), threading.Event(), threading.Event()
    watchdog = Watchdog(5.0, clock)

    def work() -> None:
        try:
            with watchdog.watching(LANE, SLOT):
                begun.set()
                while True:
                    pass
        except OverdueError:
            ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    assert watchdog.find_overdue() == ([], [])
    clock.now = 6.0
    overdue, stuck = watchdog.find_overdue()
    assert ([run.slot for run in overdue], stuck) == ([SLOT], [])
    eventually(ended.is_set)
    thread.join()
    assert watchdog.find_overdue() == ([], [])


def test_what_does_not_stop_is_named_after_its_grace() -> None:
    clock, interrupts = Clock(), []
    watchdog = Watchdog(5.0, clock, lambda thread, error: interrupts.append(error))
    with watchdog.watching(LANE, SLOT):
        clock.now = 6.0
        watchdog.find_overdue()
        assert watchdog.find_overdue()[1] == []
        clock.now = 6.1 + GRACE_S
        [stuck] = watchdog.find_overdue()[1]
        assert stuck.slot is SLOT
    # What ended in the last moment is not interrupts any more.
    assert interrupts == [OverdueError, None]
