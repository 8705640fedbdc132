"""Watches the threads that a process needs, and reports when one dies."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lookout.errors import FencedError, LookoutRuntimeError
from lookout.runtime.observe import logs


class ThreadDiedError(LookoutRuntimeError):
    """A thread that the service needs has died, so the process must end."""


class Supervisor:
    """Starts threads, and stores the first exception of any of them. The worker calls `check` in every loop.

    A thread whose target returns has finished its work; only an exception is a fault.
    """

    def __init__(self) -> None:
        self._fault: ThreadDiedError | FencedError | None = None
        self._lock = threading.Lock()

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Run `target` on a daemon thread called `name`."""
        thread = threading.Thread(target=self._run, args=(name, target), name=name, daemon=True)
        thread.start()
        return thread

    def check(self) -> None:
        """Check that no thread has died.

        Raises:
            ThreadDiedError: A thread has died.
            FencedError: A thread found that another process does its work.
        """
        if self._fault is not None:
            raise self._fault

    def _run(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        # Including SystemExit, because the service needs the thread however it ended.
        except BaseException as error:
            with self._lock:  # before logging, which may also fail
                if self._fault is None:
                    self._fault = error if isinstance(error, FencedError) else _died(name, error)
            logs.get("supervision").exception("a thread died", thread=name)


def _died(name: str, error: BaseException) -> ThreadDiedError:
    fault = ThreadDiedError(f"the thread {name!r} died: {error!r}")
    fault.__cause__ = error
    return fault
