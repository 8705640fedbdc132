"""Liveness and readiness. A service is alive if its polling thread runs, and ready if it is a settled member
of its consumer group and can reach Kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Health:
    """Health of a service. The polling thread writes it, the probes read it.

    Args:
        stall_s: Seconds without a round of the polling thread after which it counts as hanging.
        clock: Monotonic seconds.
    """

    def __init__(self, stall_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._lock = threading.Lock()
        self._beat = self._clock()
        self._blockers: dict[str, str] = {"worker": "starting"}
        self._notes: dict[str, Callable[[], object]] = {}

    def beat(self) -> None:
        """Note that the polling thread has finished a round."""
        self._beat = self._clock()

    def allow(self, seconds: float) -> None:
        """Count as alive for another `seconds` without a round of the polling thread, for example while a
        model loads.
        """
        self._beat = self._clock() + seconds

    def block(self, part: str, why: str) -> None:
        """Block readiness until `part` is cleared."""
        with self._lock:
            self._blockers[part] = why

    def clear(self, part: str) -> None:
        """Let readiness no longer be blocked by `part`."""
        with self._lock:
            self._blockers.pop(part, None)

    def alive(self) -> bool:
        """Whether the polling thread runs; if it hangs, only a restart helps."""
        return self._clock() - self._beat < self._stall_s

    def blockers(self) -> dict[str, str]:
        """Return why the service is not ready, by part; empty if it is."""
        with self._lock:
            return dict(self._blockers)

    def note(self, part: str, tell: Callable[[], object]) -> None:
        """Show facts about a part alongside readiness. `tell` returns them as JSON-compatible data; empty
        data is not shown.
        """
        with self._lock:
            self._notes[part] = tell

    def notes(self) -> dict[str, object]:
        """Return the facts that are shown alongside readiness, by part."""
        with self._lock:
            # Called without this lock, because `tell` may take other locks.
            notes = dict(self._notes)
        return {part: text for part, tell in notes.items() if (text := tell())}

    def ready(self) -> bool:
        """Whether the service can do its work now."""
        return self.alive() and not self.blockers()
