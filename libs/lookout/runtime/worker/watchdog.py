"""Finds work on compute threads that takes too long, and interrupts it. If the work cannot be interrupted,
the worker writes a dead letter and ends the process."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lookout.errors import LookoutRuntimeError
from lookout.runtime.worker.partitions import Lane
from lookout.runtime.worker.records import Result, Slot

#: seconds that work may take to end after it was interrupted
GRACE_S: Final = 10.0


class OverdueError(LookoutRuntimeError):
    """Raised inside work that takes longer than `LOOKOUT_WORK_LIMIT_S`."""


@dataclass(slots=True, eq=False)
class Running:
    """One attempt on a compute thread. Times are those of the watchdog's clock.

    Attributes:
        thread: Id of the thread.
        lane: The camera's lane.
        slot: The slot that is tried.
        since: When the attempt began.
        told_at: When the attempt was interrupted; None: it was not.
        reported: Whether it was logged that the attempt did not end.
        result: The result to commit instead of the attempt's own; None: not known yet.
    """

    thread: int
    lane: Lane
    slot: Slot
    since: float
    told_at: float | None = None
    reported: bool = False
    result: Result | None = None


class Watchdog:
    """Tracks running attempts. Compute threads enter and leave; the polling thread looks for overdue ones.

    Python cannot stop a thread, but can raise an exception in it. That ends Python code within milliseconds;
    a call into C is not interrupted.

    Args:
        limit_s: Seconds that one attempt may take.
        clock: Monotonic seconds.
        interrupt: Called with a thread's id and an exception to raise in it, or None to withdraw an exception
            that was not raised yet. None: the CPython function.
    """

    def __init__(
        self,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        interrupt: Callable[[int, type[Exception] | None], None] | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._interrupt = interrupt or _raise_in
        self._lock = threading.Lock()
        self._running: dict[int, Running] = {}

    @contextmanager
    def watching(self, lane: Lane, slot: Slot) -> Iterator[None]:
        """Track one attempt within the block."""
        thread = threading.get_ident()
        running = Running(thread, lane, slot, self._clock())
        with self._lock:
            self._running[thread] = running
        try:
            yield
        finally:
            self._leave(thread, running)

    def _leave(self, thread: int, running: Running) -> None:
        with self._lock:
            del self._running[thread]
            if running.told_at is not None:
                # The attempt has ended. The exception must not be raised in the next attempt on this thread.
                self._interrupt(thread, None)

    def find_overdue(self) -> tuple[list[Running], list[Running]]:
        """Find overdue attempts, and interrupt those that were not interrupted yet.

        Returns:
            All overdue attempts, and those of them that did not end within `GRACE_S` after the interruption.
        """
        now = self._clock()
        with self._lock:
            overdue = [running for running in self._running.values() if now - running.since > self._limit_s]
            for running in overdue:
                if running.told_at is None:
                    running.told_at = now
                    self._interrupt(running.thread, OverdueError)
            return overdue, [
                run for run in overdue if run.told_at is not None and now - run.told_at > GRACE_S
            ]


def _raise_in(thread: int, error: type[Exception] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
