"""Alive: the polling thread runs. Ready: a settled member of the group, and Kafka can be reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Health:
    """Shared between the polling thread (writes) and the probes (read).

    Args:
        stall_s: Seconds without a turn of the polling thread after which it hangs.
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
        """The polling thread has finished one round."""
        self._beat = self._clock()

    def allow(self, seconds: float) -> None:
        """Alive for `seconds` more without a turn of the polling thread: a model loads."""
        self._beat = self._clock() + seconds

    def block(self, part: str, why: str) -> None:
        """Not ready until `part` is cleared."""
        with self._lock:
            self._blockers[part] = why

    def clear(self, part: str) -> None:
        """`part` no longer blocks readiness."""
        with self._lock:
            self._blockers.pop(part, None)

    def alive(self) -> bool:
        """False: the polling thread hangs; only a restart helps."""
        return self._clock() - self._beat < self._stall_s

    def blockers(self) -> dict[str, str]:
        """Why it is not ready; empty: it is."""
        with self._lock:
            return dict(self._blockers)

    def note(self, part: str, tell: Callable[[], object]) -> None:
        """Say something alongside readiness: `tell` gives what JSON can hold; nothing is said while that is
        empty.
        """
        with self._lock:
            self._notes[part] = tell

    def notes(self) -> dict[str, object]:
        """What is said alongside readiness, by part."""
        with self._lock:
            # `tell` may take locks of its own: it is called outside of this one.
            notes = dict(self._notes)
        return {part: text for part, tell in notes.items() if (text := tell())}

    def ready(self) -> bool:
        """Whether the service does its work right now."""
        return self.alive() and not self.blockers()
