"""Makes tenants' shares of devices fair over all instances.

Once a second every instance adds its work for each tenant to a sum in Redis and reads the total. The sums are
advisory: without Redis an instance still shares its own device fairly, but ignores the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from lookout.runtime.fairness import HALF_LIFE_S, FairShares
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.net.redis_values import Kind, number_of, required, text_of, with_types
from lookout.runtime.observe import logs
from lookout.runtime.tenants.usage import EXCHANGE_S
from lookout.runtime.worker import Context
from lookout.wire import REDIS_KEYS

_WORK: Final = REDIS_KEYS + "{{tenants}}:device:{epoch}"
#: seconds of one hash; work before the previous epoch would count less than a sixtieth, so it is ignored
_EPOCH_S: Final = 6 * HALF_LIFE_S
#: largest plausible sum in one hash, which is the work of a million devices
_MOST_S: Final = 1e6 * _EPOCH_S * 2**6

_log = logs.get("tenants")


class RedisWork:
    """The recent work of all instances' devices, by tenant.

    Work counts half after `HALF_LIFE_S`. Sums in Redis are never scaled down. Instead, what is added is
    multiplied by a factor that grows with time, and what is read is divided by it (forward decay: Cormode,
    Shkapenyuk, Srivastava and Xu, 2009). A new hash for each epoch keeps the numbers small.

    Args:
        client: Redis; `exchange` raises its errors.
        clock: Unix seconds. If two instances' clocks differ by a second, the work of one counts 7 % more.
    """

    def __init__(self, client: Any, clock: Callable[[], float] = time.time) -> None:
        self._client, self._clock = client, clock

    def exchange(self, work: Mapping[str, float]) -> dict[str, float]:
        """Add this instance's work to the sums; return the sums of all instances.

        Args:
            work: Seconds by tenant that were not added yet.

        Returns:
            Seconds by tenant of all instances, including what was just added.
        """
        now = self._clock()
        epoch = int(now // _EPOCH_S)
        keys = {number: _WORK.format(epoch=number) for number in (epoch - 1, epoch)}
        kinds: dict[str, Kind] = dict.fromkeys(keys.values(), "hash")

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for tenant, seconds in work.items():
                    pipe.hincrbyfloat(keys[epoch], tenant, seconds * _growth(now, epoch))
                pipe.expire(keys[epoch], round(2 * _EPOCH_S))
                for key in keys.values():
                    pipe.hgetall(key)
                # If somebody wrote an invalid number for one tenant, the other tenants' sums are still right.
                return required(pipe.execute(raise_on_error=False)[-len(keys) :])

        sums = Counter[str]()
        for number, fields in zip(keys, with_types(self._client, kinds, ask), strict=True):
            for tenant, amount in fields.items():
                name, seconds = text_of(tenant), number_of(amount)
                if name is not None and seconds is not None and 0 <= seconds <= _MOST_S:
                    sums[name] += seconds / _growth(now, number)  # type: ignore[assignment]
        return dict(sums)


def _growth(now: float, epoch: int) -> float:
    """Return the factor by which work done now is multiplied in the hash of an epoch."""
    return float(2 ** ((now - epoch * _EPOCH_S) / HALF_LIFE_S))


class FleetShares:
    """Makes the shares of this instance's device count the work of all instances. Thread-safe.

    Args:
        shares: The shares of this instance's device.
        work: The sums that instances share.
    """

    def __init__(self, shares: FairShares, work: RedisWork) -> None:
        self._shares, self._work = shares, work
        self._failed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def exchange(self) -> None:
        """Report what this instance computed since the last call, and read the work of all instances."""
        unsent = self._shares.take_unsent()
        try:
            sums = self._work.exchange(unsent)
        # ValueError: somebody else wrote a value that is not a number.
        except (*REDIS_ERRORS, ValueError) as error:
            self._shares.lose(unsent)
            if not self._failed:
                _log.warning(
                    "tenants' shares are fair on this instance only: the work of the others is unknown",
                    error=str(error),
                )
            self._failed = True
            return
        self._shares.learn(sums)
        if self._failed:
            _log.info("tenants' shares are fair over all instances again")
        self._failed = False

    def start(self, run: Callable[[str, Callable[[], None]], threading.Thread]) -> None:
        """Call `exchange` once a second. `run` starts a thread, as `Supervisor.start` does."""
        self._thread = run("tenant-shares", self._follow)

    def stop(self) -> None:
        """Stop the exchange, so that Redis may be closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._stop.wait(EXCHANGE_S):
            self.exchange()


def fleet_numbers(shares: FairShares) -> Iterator[Metric]:
    """Yield the metric that tells whether shares are fair over all instances."""
    yield GaugeMetricFamily(
        "lookout_tenant_shares_together",
        "1: tenants' shares count the devices of all instances; 0: they count only this instance's, "
        "because nothing was computed lately or Redis does not answer",
        value=float(shares.together),
    )


def open_fleet_shares(context: Context[Any], shares: FairShares) -> FleetShares:
    """Make a service's shares fair over all its instances through Redis, until the service ends.

    Args:
        context: The service's context.
        shares: The shares of its device.
    """
    settings = context.settings
    # No retries by the client: a failed call may have arrived, and a retry would add its work twice.
    client = settings.redis_client(
        settings.redis_url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=None
    )
    context.on_close(client.close)
    fleet = FleetShares(shares, RedisWork(client))
    fleet.start(context.supervisor.start)
    context.on_close(fleet.stop)
    context.metrics.show(lambda: fleet_numbers(shares))
    return fleet
