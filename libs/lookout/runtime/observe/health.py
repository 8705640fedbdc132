"""Liveness and readiness. Alive: the polling thread runs. Ready: a settled member of the group that can reach
Kafka."""

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
        """Count as alive for `seconds` more without a round of the polling thread, while a model loads."""
        self._beat = self._clock() + seconds

    def block(self, part: str, why: str) -> None:
        """Block readiness until `part` is cleared."""
        with self._lock:
            self._blockers[part] = why

    def clear(self, part: str) -> None:
        """`part` no longer blocks readiness."""
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
        """Report something alongside readiness. `tell` returns JSON-compatible data; nothing is shown while
        it is empty."""
        with self._lock:
            self._notes[part] = tell

    def notes(self) -> dict[str, object]:
        """Return what is reported alongside readiness, by part."""
        with self._lock:
            # `tell` may take locks of its own, so it is called without this one.
            notes = dict(self._notes)
        return {part: text for part, tell in notes.items() if (text := tell())}

    def ready(self) -> bool:
        """Whether the service can do its work now."""
        return self.alive() and not self.blockers()
