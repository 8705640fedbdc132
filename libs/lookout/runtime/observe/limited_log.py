"""Rate-limited log lines for events that untrusted records cause.

Each subject gets a few lines per interval. Further lines are skipped, and the next interval's first line says
how many.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from lookout.text import clean

INTERVAL_S: Final = 60.0
#: maximum number of lines per subject and interval
LINES: Final = 10
#: maximum number of subjects that are counted separately; all further subjects share one count
SUBJECTS: Final = 1000


@dataclass(slots=True)
class _Count:
    since: float
    lines: int = 0


class LimitedLog:
    """Warnings and errors, rate-limited by subject (such as a camera and a reason). Thread-safe.

    Args:
        log: The logger to which lines are written (structlog).
        clock: Monotonic seconds.
    """

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[Hashable, _Count] = {}

    def warning(self, subject: Hashable, event: str, **facts: object) -> None:
        """Log a warning, unless the subject has used up its lines in this interval."""
        self._write(self._log.warning, subject, event, facts)

    def error(self, subject: Hashable, event: str, **facts: object) -> None:
        """Log an error, unless the subject has used up its lines in this interval."""
        self._write(self._log.error, subject, event, facts)

    def _write(
        self, write: Callable[..., object], subject: Hashable, event: str, facts: dict[str, object]
    ) -> None:
        left_out = self._skipped_before(subject)
        if left_out is None:
            return
        if left_out:
            facts["left_out_before"] = left_out
        write(event, **{name: clean(fact) for name, fact in facts.items()})

    def _skipped_before(self, subject: Hashable) -> int | None:
        """Return how many lines of a subject were skipped before this line; None if this line must be
        skipped, too.
        """
        now = self._clock()
        with self._lock:
            if subject not in self._counts and len(self._counts) >= SUBJECTS:
                self._counts = {
                    key: count for key, count in self._counts.items() if now - count.since < INTERVAL_S
                }
                subject = subject if len(self._counts) < SUBJECTS else ""
            count = self._counts.setdefault(subject, _Count(now))
            left_out = 0
            if now - count.since >= INTERVAL_S:
                left_out = max(0, count.lines - LINES)
                count.since, count.lines = now, 0
            count.lines += 1
            return left_out if count.lines <= LINES else None
