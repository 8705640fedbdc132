"""Fair shares of one device: whose request is computed next, by measured work.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over batches. Every owner has a virtual time: the work
it was given, divided by its weight. The next request is one of the owner whose virtual time is least. An
owner that had nothing waiting begins at the present of the others: what it did not use is not saved up. So an
owner alone gets everything, and virtual times of owners that always wait differ by one batch at most.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: seconds after which measured work counts half
HALF_LIFE_S: Final = 10.0
#: share of the newest measurement in the expected work of a request
_NEWEST: Final = 0.2
#: owners that are remembered; those with the least work are forgotten beyond
_OWNERS: Final = 4096


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What an owner has of a device.

    Attributes:
        share: Of the work of the last seconds.
        fair: What is its part by weight.
        owners: That use the device, this one included.
    """

    share: float
    fair: float
    owners: int


class FairShares:
    """Orders requests of owners that share a device. Thread-safe.

    Args:
        weight: The weight of an owner, above 0.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        weight: Callable[[str], float] = lambda owner: 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weight, self._clock = weight, clock
        self._lock = threading.Lock()
        self._times: dict[str, float] = {}
        self._now = 0.0
        self._expected: float | None = None
        self._recent: dict[str, float] = {}
        self._recent_at = clock()

    def order(self, owners: Sequence[str]) -> list[int]:
        """The order in which waiting requests are served.

        Args:
            owners: Of each request, in order of arrival.

        Returns:
            Indices into `owners`: of one owner in order of arrival, between owners the one that was given
            least first.
        """
        queues: dict[str, deque[int]] = {}
        for index, owner in enumerate(owners):
            queues.setdefault(owner, deque()).append(index)
        if len(queues) == 1:
            self._arrive(queues)
            return list(range(len(owners)))
        with self._lock:
            times = self._arrive_locked(queues)
            expected = self._expected or 1.0
        ordered: list[int] = []
        while queues:
            # The first that arrived decides between equal times: names decide nothing.
            owner = min(queues, key=lambda name: (times[name], queues[name][0]))
            ordered.append(queues[owner].popleft())
            times[owner] += expected / self._weight(owner)
            if not queues[owner]:
                del queues[owner]
        return ordered

    def charge(self, work: Mapping[str, float], requests: int) -> None:
        """Note what a batch cost.

        Args:
            work: Seconds (or any unit) by owner.
            requests: Requests of the batch.
        """
        total = sum(work.values())
        with self._lock:
            for owner, cost in work.items():
                self._times[owner] = max(self._times.get(owner, 0.0), self._now) + cost / self._weight(owner)
            if requests:
                mean = total / requests
                before = mean if self._expected is None else self._expected
                self._expected = before + _NEWEST * (mean - before)
            self._decay()
            for owner, cost in work.items():
                self._recent[owner] = self._recent.get(owner, 0.0) + cost
            self._forget()

    def shares(self) -> dict[str, float]:
        """The share of the work of the last seconds that each owner had; empty where there was none."""
        with self._lock:
            self._decay()
            total = sum(self._recent.values())
            return {owner: work / total for owner, work in self._recent.items()} if total > 0 else {}

    def part(self, owner: str) -> DevicePart | None:
        """What an owner had of the work of the last seconds; None: nobody else had any."""
        shares = self.shares()
        if not shares.keys() - {owner}:
            return None
        weights = {name: self._weight(name) for name in {*shares, owner}}
        return DevicePart(shares.get(owner, 0.0), weights[owner] / sum(weights.values()), len(weights))

    def _arrive(self, owners: Mapping[str, object]) -> None:
        with self._lock:
            self._arrive_locked(owners)

    def _arrive_locked(self, owners: Mapping[str, object]) -> dict[str, float]:
        """The virtual times of owners that wait, and the present they give."""
        times = {owner: max(self._times.get(owner, 0.0), self._now) for owner in owners}
        self._now = min(times.values())
        self._times.update(times)
        return times

    def _decay(self) -> None:
        now = self._clock()
        factor = math.pow(0.5, max(0.0, now - self._recent_at) / HALF_LIFE_S)
        self._recent_at = now
        # Below a millionth of a second an owner is gone: it takes no part of others' shares.
        decayed = {owner: work * factor for owner, work in self._recent.items()}
        self._recent = {owner: work for owner, work in decayed.items() if work > 1e-6}

    def _forget(self) -> None:
        """Owners whose time lies behind the present begin at the present anyway."""
        if len(self._times) > _OWNERS:
            self._times = {owner: at for owner, at in self._times.items() if at > self._now}
