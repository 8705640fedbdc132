"""What times an answer's stages."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """What times an answer's stages: the wall clock. Benches on a busy CPU put the thread's own time here."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def clock() -> float:
    """Seconds of the present clock."""
    return Clock.now()
