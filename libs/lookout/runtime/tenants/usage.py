"""Counts what tenants use, over all instances, and checks their quotas.

Every instance counts locally and exchanges its counts with the other instances once a second through Redis,
so a quota may be exceeded by what the instances accept in a second. While Redis is unavailable, an instance
continues with the last totals and its own counts. Counts are advisory: if Redis is emptied, they restart at
0.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, Metric

from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.observe import logs
from lookout.runtime.tenants.counters import AloneCounters, Counters, RedisCounters, Used
from lookout.runtime.tenants.quotas import NOUNS, Kind, Quotas
from lookout.runtime.tenants.settings import TenantSettings
from lookout.runtime.worker import Context, Supervisor

EXCHANGE_S: Final = 1.0
#: maximum number of tenants counted by name; names come with footage, so there may be any number of them
TENANTS: Final = 1000
#: the name under which further tenants are counted
REST: Final = "(others)"

_log = logs.get("tenants")


class TenantUsage:
    """Counts what tenants use, and says when a quota is used up. Thread-safe.

    Args:
        quotas: What each tenant may use.
        kinds: The kinds of quotas that are checked here; other stages check the other kinds.
        counters: The counts that instances share; None: there is only this instance.
        interval_s: Length of the quotas' interval. Intervals begin at multiples of it, at the same time on
            every instance.
        clock: Unix seconds.
    """

    def __init__(
        self,
        quotas: Quotas,
        kinds: Collection[Kind],
        counters: Counters | None = None,
        *,
        interval_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._quotas, self._kinds, self._counters = quotas, tuple(kinds), counters or AloneCounters()
        self._interval_s, self._clock = interval_s, clock
        self._lock = threading.Lock()
        self._interval = 0
        self._used: Used = {}  # totals of the interval, as of the last exchange
        self._unsent: defaultdict[tuple[str, Kind], float] = defaultdict(float)
        self._sent: dict[str, dict[str, float]] = {}  # by tenant: when each camera sent last
        self._without_place: dict[str, frozenset[str]] = {}
        self.totals: defaultdict[tuple[str, Kind], float] = defaultdict(float)
        """Amounts used since the start, by tenant and kind."""
        self.refusals: Counter[tuple[str, Kind]] = Counter()
        """Rejections since the start. Every limit that was checked has a count, even if it is 0."""
        for name, quota in quotas.named.items():
            self.refusals.update({(name, kind): 0 for kind in kinds if quota.limit(kind) is not None})
        self._stop = threading.Event()

    def add(self, tenant: str, kind: Kind, amount: float) -> None:
        """Add `amount` of `kind` to what a tenant has used."""
        with self._lock:
            key = (self._counted(tenant), kind)
            self.totals[key] += amount
            if self._quotas.of(key[0]).limit(kind) is not None:
                self._roll()
                self._unsent[key] += amount

    def refusal(self, tenant: str, camera: str = "") -> str | None:
        """Return why a record of one of a tenant's cameras must be rejected; None if the tenant is within its
        quotas.

        Args:
            tenant: Its name.
            camera: The camera's id; from now on, the camera counts as sending.

        Returns:
            The reason, which names the tenant, the quota and what to do; or None.
        """
        with self._lock:
            self._roll()
            name = self._counted(tenant)
            quota = self._quotas.of(name)
            for kind in self._kinds:
                limit = quota.limit(kind)
                if limit is None:
                    continue
                used = self._cameras(name, camera, limit) if kind == "cameras" else self._so_far(name, kind)
                self.refusals[name, kind] += used >= limit
                if used >= limit:
                    return self._reason(tenant, kind, limit)
        return None

    def exchange(self) -> None:
        """Add this instance's counts to the shared ones, and read the totals."""
        with self._lock:
            self._roll()
            interval, unsent = self._interval, self._unsent
            self._unsent = defaultdict(float)
            sent = self._limited_cameras(self._clock())
        try:
            used = self._counters.exchange(interval, self._interval_s, unsent)
        # ValueError: somebody else wrote a value that is not a number.
        except (*REDIS_ERRORS, ValueError) as error:
            with self._lock:
                if interval == self._interval:
                    for key, amount in unsent.items():
                        self._unsent[key] += amount
            _log.warning("tenants' counts cannot be exchanged", error=str(error))
            return
        with self._lock:  # even if asking for slots fails, these counts must not be sent again
            if interval == self._interval:
                self._used = used
        try:
            without_place = {
                tenant: self._counters.without_place(tenant, limit, self._interval_s, cameras)
                for tenant, (limit, cameras) in sent.items()
            }
        except (*REDIS_ERRORS, ValueError) as error:
            _log.warning("tenants' camera slots cannot be exchanged", error=str(error))
            return
        with self._lock:
            self._without_place = without_place

    def start(self, supervisor: Supervisor) -> None:
        """Exchange counts once a second on a thread of its own, if anything is limited."""
        if self._quotas.any:
            supervisor.start("tenants", self._follow)

    def stop(self) -> None:
        """Stop exchanging counts."""
        self._stop.set()

    def _follow(self) -> None:
        while not self._stop.wait(EXCHANGE_S):
            self.exchange()

    # -- under the lock

    def _counted(self, tenant: str) -> str:
        by_name = (
            tenant in self._quotas.named
            or tenant in self._sent
            or any((tenant, kind) in self.totals for kind in NOUNS)
        )
        room = len(self.totals) < TENANTS * len(NOUNS) and len(self._sent) < TENANTS
        return tenant if by_name or room else REST

    def _roll(self) -> None:
        """Begin a new interval if it is time."""
        interval = int(self._clock() // self._interval_s)
        if interval != self._interval:
            self._interval, self._used, self._unsent = interval, {}, defaultdict(float)

    def _so_far(self, tenant: str, kind: Kind) -> float:
        return self._used.get((tenant, kind), 0.0) + self._unsent.get((tenant, kind), 0.0)

    def _cameras(self, tenant: str, camera: str, limit: float) -> float:
        """Note that the camera sends; return the limit of cameras if the camera has no slot, otherwise 0."""
        cameras = self._sent.setdefault(tenant, {})
        cameras[camera] = self._clock()
        refused = limit == 0 or camera in self._without_place.get(tenant, frozenset())
        return limit if refused else 0

    def _limited_cameras(self, now: float) -> dict[str, tuple[int, list[str]]]:
        """Return, for each limited tenant, the limit and the cameras that sent within an interval, the first
        to send first.
        """
        limited = {}
        for tenant, cameras in self._sent.items():
            for camera, at in list(cameras.items()):
                if now - at > self._interval_s:
                    del cameras[camera]
            limit = self._quotas.of(tenant).cameras
            if limit is not None and cameras:
                limited[tenant] = (limit, list(cameras))
        self._sent = {tenant: cameras for tenant, cameras in self._sent.items() if cameras}
        return limited

    def _reason(self, tenant: str, kind: Kind, limit: float) -> str:
        if kind == "cameras":
            has, until = f"has its {limit:g} {NOUNS[kind]}", "stop a camera"
        else:
            has = f"used its {limit:g} {NOUNS[kind]} in {self._interval_s:g} s"
            until = "wait for the next interval, or send or ask less"
        return f"quota: tenant {tenant!r} {has}: {until}, or raise {kind} in LOOKOUT_TENANT_QUOTAS"


def tenant_numbers(usage: TenantUsage) -> Iterator[Metric]:
    """Yield the metrics of what tenants used and of the records rejected by a quota."""
    used = CounterMetricFamily(
        "lookout_tenant_used",
        "what tenants used on this instance, by kind: bytes, questions and so on",
        labels=["tenant", "kind"],
    )
    refused = CounterMetricFamily(
        "lookout_tenant_refused",
        "records skipped because their tenant had used up a quota",
        labels=["tenant", "quota"],
    )
    counts: tuple[tuple[CounterMetricFamily, Mapping[tuple[str, Kind], float]], ...] = (
        (used, usage.totals),
        (refused, usage.refusals),
    )
    for family, numbers in counts:
        for (tenant, kind), number in list(numbers.items()):
            family.add_metric([tenant, kind], number)
    yield used
    yield refused


def open_usage(context: Context[Any], settings: TenantSettings, kinds: Collection[Kind]) -> TenantUsage:
    """Return the counter of what a service's tenants use. It is exchanged through Redis and shown in the
    service's metrics until the service ends.

    Args:
        context: The service's context.
        settings: Its settings.
        kinds: The quotas that it checks.
    """
    counters = None
    if settings.quotas.any:
        url = context.settings.redis_url
        # No retries by the client: a failed call may have arrived, and a retry would add its counts twice.
        client = context.settings.redis_client(
            url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=None
        )
        context.on_close(client.close)
        counters = RedisCounters(client)
    usage = TenantUsage(settings.quotas, kinds, counters, interval_s=settings.tenant_interval_s)
    usage.start(context.supervisor)
    context.on_close(usage.stop)
    context.metrics.show(lambda: tenant_numbers(usage))
    return usage
