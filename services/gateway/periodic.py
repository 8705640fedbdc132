"""Periodic tasks of the gateway, each on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import sqlalchemy

from lookout.errors import LookoutError, TransientError
from lookout.runtime.observe import logs
from lookout.text import clean

#: temporary failures: the database, Kafka or an object store does not answer
_TEMPORARY = (LookoutError, TransientError, sqlalchemy.exc.DBAPIError)


class PeriodicTask:
    """Repeats a task every few seconds. A failed round is logged, and the task is retried in the next round.

    Args:
        work: Does one round.
        seconds: Pause between two rounds.
        waits: The log message for a failed round, such as "a report cannot be written now".
        after: Event that is set when the first round may begin; None: the first round begins at once.
    """

    def __init__(
        self, work: Callable[[], object], seconds: float, waits: str, after: threading.Event | None = None
    ) -> None:
        self._work, self._seconds, self._waits, self._after = work, seconds, waits, after
        self._stopped = threading.Event()

    def run(self) -> None:
        """Work until `stop`."""
        while not self._stopped.wait(self._seconds):
            if self._after is not None and not self._after.is_set():
                continue
            try:
                self._work()
            except _TEMPORARY as error:
                logs.get("gateway").warning(self._waits, error=clean(error, 300))

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopped.set()
