"""Limits on callers: calls per minute, open event streams, and waits after failed sign-ins."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

_CALLERS: Final = 10_000
_FREE_FAILURES: Final = 5
#: open event streams per caller, enough for a person's tabs and devices. Each costs a connection, and a
#: database read per change
_FOLLOWERS: Final = 20
_LONGEST_WAIT_S: Final = 300.0


class CallRate:
    """A token bucket per caller, which refills evenly.

    Args:
        per_minute: Calls per minute, and the largest burst.
        clock: Monotonic seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._clock = float(per_minute), clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Count a call and return 0 if it is allowed; otherwise return the seconds until the next call is
        allowed.
        """
        now = self._clock()
        with self._lock:
            calls, at = self._buckets.pop(caller, (self._size, now))
            calls = min(self._size, calls + (now - at) * self._size / 60)
            allowed = calls >= 1
            self._buckets[caller] = (calls - 1 if allowed else calls, now)
            while len(self._buckets) > _CALLERS:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - calls) * 60 / self._size


class Followers:
    """Counts the open event streams of each caller.

    Args:
        limit: Streams per caller.
    """

    def __init__(self, limit: int = _FOLLOWERS) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def begin(self, caller: str) -> bool:
        """Count one more stream and return True; return False without counting if the caller already has
        `limit` streams.
        """
        with self._lock:
            if self._open[caller] >= self.limit:
                return False
            self._open[caller] += 1
            return True

    def end(self, caller: str) -> None:
        """Count one stream fewer."""
        with self._lock:
            self._open[caller] -= 1
            if self._open[caller] <= 0:
                del self._open[caller]


class Failures:
    """Counts failed sign-ins by address. From the fifth failure on, the address must wait: first 1 s, then
    twice as long each time, up to 5 minutes.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return the seconds for which an address must still wait."""
        with self._lock:
            return max(0.0, self._failures.get(address, (0, 0.0))[1] - self._clock())

    def add(self, address: str) -> None:
        """Count a failure."""
        with self._lock:
            count = self._failures.pop(address, (0, 0.0))[0] + 1
            wait_s = 0.0 if count < _FREE_FAILURES else min(2.0 ** (count - _FREE_FAILURES), _LONGEST_WAIT_S)
            self._failures[address] = (count, self._clock() + wait_s)
            while len(self._failures) > _CALLERS:
                self._failures.popitem(last=False)

    def clear(self, address: str) -> None:
        """Forget an address's failures after a successful sign-in."""
        with self._lock:
            self._failures.pop(address, None)
