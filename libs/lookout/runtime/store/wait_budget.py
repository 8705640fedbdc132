"""How long a camera waits for a tensor that it needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from lookout.runtime.store.errors import StoreError, TensorNotMadeError

#: seconds that a camera may wait for tensors whose makers answered that they could not make them. While it
#: waits its partition commits nothing, so this is half of the 10 s for which one camera may hold up another
BUDGET_S: Final = 5.0
#: seconds in which a used-up budget is restored
REGAINED_S: Final = 60.0
_SWEPT: Final = 1024  # cameras that are remembered before those with a full budget are dropped


@dataclass(slots=True)
class _Wait:
    """A camera's wait. since: when the wait for `wanted` began; used: seconds of the budget used up as of
    `at`."""

    wanted: Hashable = None
    since: float = 0.0
    used: float = 0.0
    at: float = 0.0
    failed: bool = False  # a maker could not make `wanted` when it was asked last


class WaitBudget:
    """Decides whether a camera keeps waiting. Not thread-safe for one camera.

    If nobody answers, the fault may be anybody's, so each wait has a deadline of its own. If a maker answers
    but cannot make the tensor, the fault is the tensor's: all such waits of a camera share one budget,
    however many tensors it asks for.

    Args:
        limit_s: Seconds of one wait if nobody answers.
        clock: Seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._waits: dict[str, _Wait] = {}

    def over(self, camera: str, wanted: Hashable, error: StoreError) -> str:
        """Return why a camera stops waiting; empty: it tries again.

        Args:
            camera: The camera that needs the tensor.
            wanted: What the wait is for; equal at every attempt.
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
            return f"could not be made; the camera used up its {BUDGET_S:g} s of such waits: {error}"
        if now - wait.since >= self._limit_s:
            return f"were not available for {self._limit_s:g} s: {error}"
        return ""

    def done(self, camera: str) -> None:
        """Note that a camera waits for nothing now. The budget that it used stays used."""
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
