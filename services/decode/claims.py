"""Notices a camera id that appears in two partitions, which would mix two streams."""

import threading
from collections.abc import Callable


class Claims:
    """Remembers the partition in which this process last saw each camera id. A claim expires after `keep_s`
    seconds. Thread-safe.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._claims: dict[str, tuple[int, float]] = {}
        self._reported: dict[str, float] = {}
        self._next_sweep = 0.0
        self._lock = threading.Lock()

    def take(self, camera: str, partition: int) -> int | None:
        """Claim a camera for a partition.

        Returns:
            Another partition that still has a valid claim on the camera, at most once per camera in `keep_s`
            seconds; otherwise None.
        """
        now = self._clock()
        with self._lock:
            self._sweep(now)
            before = self._claims.get(camera)
            # The newest partition gets the claim, so that a conflict is noticed whichever of the two
            # partitions this process keeps.
            self._claims[camera] = (partition, now + self._keep_s)
            if before is None or before[0] == partition or before[1] <= now:
                return None
            if self._reported.get(camera, 0.0) > now:
                return None
            self._reported[camera] = now + self._keep_s
            return before[0]

    def release(self, partition: int) -> None:
        """Drop the claims of a partition that now belongs to another worker."""
        with self._lock:
            self._claims = {name: claim for name, claim in self._claims.items() if claim[0] != partition}

    def _sweep(self, now: float) -> None:
        """Drop expired claims, so that invented camera ids use memory for at most `2 * keep_s` seconds."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._keep_s
        self._claims = {name: claim for name, claim in self._claims.items() if claim[1] > now}
        self._reported = {name: until for name, until in self._reported.items() if until > now}
