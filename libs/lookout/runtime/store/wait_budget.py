"""Limits how long a camera waits for tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from lookout.runtime.store.errors import StoreError, TensorNotMadeError

#: seconds that a camera may wait for tensors that replicas answered they could not compute. Its partition
#: commits nothing in that time, so this is half of the 10 s for which one camera may delay another
BUDGET_S: Final = 5.0
#: seconds in which a used-up budget is fully restored
REGAINED_S: Final = 60.0
_SWEPT: Final = 1024  # cameras that are remembered before those with a full budget are dropped


@dataclass(slots=True)
class _Wait:
    """A camera's wait. `since`: when the wait for `wanted` began; `used`: seconds of the budget used up by
    the time `at`.
    """

    wanted: Hashable = None
    since: float = 0.0
    used: float = 0.0
    at: float = 0.0
    failed: bool = False  # a replica answered the last request but could not compute `wanted`


class WaitBudget:
    """Decides whether a camera keeps waiting. Not thread-safe for one camera.

    If no replica answers, the camera need not be at fault, so each wait has its own deadline. If a replica
    answers but cannot compute the tensor, the camera's data is at fault, so all such waits of a camera share
    one budget, however many tensors it asks for.

    Args:
        limit_s: Maximum seconds of one wait if no replica answers.
        clock: Seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._waits: dict[str, _Wait] = {}

    def over(self, camera: str, wanted: Hashable, error: StoreError) -> str:
        """Return why a camera must stop waiting; empty if it should try again.

        Args:
            camera: The camera that needs the tensor.
            wanted: What the camera waits for; the same at every attempt.
            error: The error of this attempt.
        """
        now = self._clock()
        wait = self._waits.get(camera)
        if wait is None:
            self._sweep(now)
            wait = self._waits[camera] = _Wait(at=now)
        if wait.wanted != wanted:
            wait.wanted, wait.since, wait.failed = wanted, now, False
        self._pass(wait, now)
        wait.failed = isinstance(error, TensorNotMadeError)
        if wait.failed and wait.used >= BUDGET_S:
            return f"could not be computed; the camera used up its {BUDGET_S:g} s for such waits: {error}"
        if now - wait.since >= self._limit_s:
            return f"were not available for {self._limit_s:g} s: {error}"
        return ""

    def done(self, camera: str) -> None:
        """Note that a camera is not waiting now. What it used of its budget stays used."""
        if (wait := self._waits.get(camera)) is not None:
            self._pass(wait, self._clock())
            wait.wanted, wait.failed = None, False

    @staticmethod
    def _pass(wait: _Wait, now: float) -> None:
        """Charge the time since the last call to the budget, or restore some of it."""
        passed = max(0.0, now - wait.at)
        change = passed if wait.failed else -passed * BUDGET_S / REGAINED_S
        wait.used, wait.at = min(BUDGET_S, max(0.0, wait.used + change)), now

    def _sweep(self, now: float) -> None:
        if len(self._waits) < _SWEPT:
            return
        for camera, wait in list(self._waits.items()):
            if wait.wanted is None and now - wait.at >= REGAINED_S:
                del self._waits[camera]
