"""Fair shares of one device: whose request is computed next, by measured work.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over batches. Every owner has a virtual time: the work
it was given, divided by its weight. The next request is one of the owner whose virtual time is least. An
owner that had nothing waiting begins at the present of the others: what it did not use is not saved up. So an
owner alone gets everything, and virtual times of owners that always wait differ by one batch at most.

Requests of an owner may be bound to some devices of several. Shares of all devices together are fair where
the owner that was given least comes first (max-min fairness with constraints: Ghodsi, Zaharia, Shenker and
Stoica, "Choosy", 2013). `FairShares.part` says who was given more than that; `learn` tells it of the other
devices.
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
    """What an owner has of the devices.

    Attributes:
        share: Of the work of the last seconds, of all devices that are known.
        fair: The share at which it would have, by its weight, as much as the owners of this device have on
            average, where each of them counts by its work on this device.
        owners: That use this device, this one included.
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
        # Work of the last seconds by owner, as of `_recent_at`: of this device; what of it no sum of all
        # devices contains yet; and the last sum, empty where no other device is known.
        self._recent: dict[str, float] = {}
        self._unsent: dict[str, float] = {}
        self._sums: dict[str, float] = {}
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
                self._unsent[owner] = self._unsent.get(owner, 0.0) + cost
            self._forget()

    def shares(self) -> dict[str, float]:
        """The share of the work of the last seconds that each owner had; empty where there was none."""
        with self._lock:
            self._decay()
            total = sum(self._recent.values())
            return {owner: work / total for owner, work in self._recent.items()} if total > 0 else {}

    def part(self, owner: str, *, alone: bool = False) -> DevicePart | None:
        """What an owner has of the work of the last seconds, and what is fair.

        Of owners that want more, the one that was given most has more than is fair, until it has no more than
        the next one. What small owners leave is for the others: it makes none of these an owner of too much.

        Args:
            owner: Its name.
            alone: As if this device were the only one.

        Returns:
            None: nobody else used this device.
        """
        with self._lock:
            self._decay()
            here = dict(self._recent)
            # All of one moment: what this device did since would count, and what the others did would not.
            sums = here if alone or not self._sums else dict(self._sums)
        if not here.keys() - {owner}:
            return None
        work = {name: sums.get(name, 0.0) for name in {*here, *sums, owner}}
        whole, total = sum(work.values()), sum(here.values())
        level = sum(mine / total * work[name] / self._weight(name) for name, mine in here.items())
        if whole <= 0:  # the sums do not have this device's first work yet
            return None
        owners = len({*here, owner})
        return DevicePart(work[owner] / whole, level * self._weight(owner) / whole, owners)

    @property
    def together(self) -> bool:
        """Whether the work of other devices is known."""
        with self._lock:
            return bool(self._sums)

    def take_unsent(self) -> dict[str, float]:
        """The work of this device that no sum of all devices contains yet, to be added to one."""
        with self._lock:
            self._decay()
            unsent, self._unsent = self._unsent, {}
            return unsent

    def learn(self, sums: Mapping[str, float]) -> None:
        """The work of the last seconds on all devices by owner, with what was taken to be sent."""
        with self._lock:
            self._decay()
            self._sums = dict(sums)

    def lose(self, unsent: Mapping[str, float]) -> None:
        """The other devices cannot be known: go on alone. `unsent` was taken, and is in no sum."""
        with self._lock:
            self._decay()
            self._sums = {}
            for owner, work in unsent.items():
                self._unsent[owner] = self._unsent.get(owner, 0.0) + work

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
        self._recent, self._unsent, self._sums = (
            _faded(work, factor) for work in (self._recent, self._unsent, self._sums)
        )

    def _forget(self) -> None:
        """Owners whose time lies behind the present begin at the present anyway."""
        if len(self._times) > _OWNERS:
            self._times = {owner: at for owner, at in self._times.items() if at > self._now}


def _faded(work: Mapping[str, float], factor: float) -> dict[str, float]:
    """Older work. Below a millionth of a second an owner is gone: it takes no part of others' shares."""
    return {owner: seconds * factor for owner, seconds in work.items() if seconds * factor > 1e-6}
