"""The clock that times an answer's stages."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """The clock that times an answer's stages: wall time. Benchmarks on a busy CPU replace it with the
    thread's CPU time."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def clock() -> float:
    """Return the current time of the clock in seconds."""
    return Clock.now()
