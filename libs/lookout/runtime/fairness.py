"""Fair sharing of one device between owners, by measured work.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over batches. Every owner has a virtual time: the work
it was given, divided by its weight. The owner with the smallest virtual time is served next. An owner that
had nothing waiting restarts at the current virtual time, so unused shares are not saved up. An owner that is
alone gets the whole device, and the virtual times of owners that always have requests waiting differ by at
most one batch.

With several devices, an owner's requests may be bound to some of them. The shares over all devices are fair
if the owner that was given least comes first (max-min fairness with constraints: Ghodsi, Zaharia, Shenker and
Stoica, "Choosy", 2013). `FairShares.part` compares an owner's share with that; `FairShares.learn` takes the
work of the other devices.
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
#: owners that are remembered; beyond that, those whose virtual time has passed are dropped
_OWNERS: Final = 4096


@dataclass(frozen=True, slots=True)
class DevicePart:
    """One owner's share of the devices' recent work.

    Attributes:
        share: The owner's share of the recent work on all known devices.
        fair: The share at which the owner's work, divided by its weight, equals the average over this
            device's owners. In that average, each owner counts in proportion to its work on this device.
        owners: Number of owners that use this device, this one included.
    """

    share: float
    fair: float
    owners: int


class FairShares:
    """Order the requests of owners that share a device. Thread-safe.

    Args:
        weight: Returns the weight of an owner, above 0.
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
        # Recent work by owner, as of `_recent_at`: on this device; the part of it that is in no sum over all
        # devices yet; and the last sum, which is empty if no other device is known.
        self._recent: dict[str, float] = {}
        self._unsent: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self._recent_at = clock()

    def order(self, owners: Sequence[str]) -> list[int]:
        """Return the order in which waiting requests are served.

        Args:
            owners: The owner of each request, in order of arrival.

        Returns:
            Indices into `owners`. Requests of one owner keep their order of arrival; between owners, the
            one that was given least comes first.
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
            # Between equal times the first to arrive wins: names decide nothing.
            owner = min(queues, key=lambda name: (times[name], queues[name][0]))
            ordered.append(queues[owner].popleft())
            times[owner] += expected / self._weight(owner)
            if not queues[owner]:
                del queues[owner]
        return ordered

    def charge(self, work: Mapping[str, float], requests: int) -> None:
        """Record the cost of a batch.

        Args:
            work: Seconds (or any other unit) by owner.
            requests: Number of requests in the batch.
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
        """Return each owner's share of this device's recent work; empty if there was none."""
        with self._lock:
            self._decay()
            total = sum(self._recent.values())
            return {owner: work / total for owner, work in self._recent.items()} if total > 0 else {}

    def part(self, owner: str, *, alone: bool = False) -> DevicePart | None:
        """Compare an owner's share of the recent work with its fair share.

        Among the owners that want more, the one that was given most is above its fair share until the others
        have caught up. Work that small owners leave unused goes to the others and does not put them above
        their fair share.

        Args:
            owner: Its name.
            alone: Count this device only, as if there were no other.

        Returns:
            The comparison; None if nobody else used this device.
        """
        with self._lock:
            self._decay()
            here = dict(self._recent)
            # Take the sums of one moment: adding this device's newer work, but not that of the others, would
            # be unfair.
            sums = here if alone or not self._sums else dict(self._sums)
        if not here.keys() - {owner}:
            return None
        work = {name: sums.get(name, 0.0) for name in {*here, *sums, owner}}
        whole, total = sum(work.values()), sum(here.values())
        level = sum(mine / total * work[name] / self._weight(name) for name, mine in here.items())
        if whole <= 0:  # the sums do not include this device's first work yet
            return None
        owners = len({*here, owner})
        return DevicePart(work[owner] / whole, level * self._weight(owner) / whole, owners)

    @property
    def together(self) -> bool:
        """Whether the work of other devices is known."""
        with self._lock:
            return bool(self._sums)

    def take_unsent(self) -> dict[str, float]:
        """Take the work of this device that is in no sum over all devices yet.

        The caller adds it to such a sum, or gives it back with `lose`.
        """
        with self._lock:
            self._decay()
            unsent, self._unsent = self._unsent, {}
            return unsent

    def learn(self, sums: Mapping[str, float]) -> None:
        """Set the recent work on all devices by owner; it includes what `take_unsent` returned."""
        with self._lock:
            self._decay()
            self._sums = dict(sums)

    def lose(self, unsent: Mapping[str, float]) -> None:
        """Continue with this device alone, because the other devices' work is unknown.

        Args:
            unsent: What `take_unsent` returned; it reached no sum and is taken back.
        """
        with self._lock:
            self._decay()
            self._sums = {}
            for owner, work in unsent.items():
                self._unsent[owner] = self._unsent.get(owner, 0.0) + work

    def _arrive(self, owners: Mapping[str, object]) -> None:
        with self._lock:
            self._arrive_locked(owners)

    def _arrive_locked(self, owners: Mapping[str, object]) -> dict[str, float]:
        """Return the virtual times of waiting owners; the smallest becomes the current virtual time."""
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
        """Drop owners whose virtual time has passed: they would restart at the current one anyway."""
        if len(self._times) > _OWNERS:
            self._times = {owner: at for owner, at in self._times.items() if at > self._now}


def _faded(work: Mapping[str, float], factor: float) -> dict[str, float]:
    """Scale down older work. Owners with less than a microsecond left are dropped, so that they take no part
    of others' shares."""
    return {owner: seconds * factor for owner, seconds in work.items() if seconds * factor > 1e-6}
