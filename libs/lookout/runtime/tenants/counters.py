"""Counters that all instances of a service share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from lookout.runtime.net.redis_values import number_of, required, text_of, with_types
from lookout.runtime.tenants.quotas import Kind
from lookout.wire import REDIS_KEYS

#: amounts used, by tenant and kind
Used = dict[tuple[str, Kind], float]

_USED: Final = REDIS_KEYS + "{{tenants}}:used:{interval}"
_CAMERAS: Final = REDIS_KEYS + "{{tenants}}:cameras:{tenant}"
#: Gives cameras slots of their tenant; a camera that has not sent for a while loses its slot.
#: KEYS[1]: the slots. ARGV[1]: the time; 2: seconds that a slot is kept; 3: number of slots; 4...: cameras.
#: Returns the cameras without a slot.
_PLACES: Final = """
-- others may have written here
if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then redis.call('DEL', KEYS[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. (ARGV[1] - ARGV[2]))
local refused = {}
for index = 4, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[index]) or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[index])
  else
    refused[#refused + 1] = ARGV[index]
  end
end
redis.call('EXPIRE', KEYS[1], math.ceil(2 * ARGV[2]))
return refused
"""
#: maximum number of cameras per call, because Redis serves nobody else while it runs a script
_BATCH: Final = 500


class Counters(Protocol):
    """Counts that instances share."""

    def exchange(self, interval: int, keep_s: float, used: Mapping[tuple[str, Kind], float]) -> Used:
        """Add to the counts of an interval and return the totals of all instances."""

    def without_place(self, tenant: str, limit: int, keep_s: float, cameras: Sequence[str]) -> frozenset[str]:
        """Give sending cameras one of their tenant's `limit` slots; return the cameras that got none."""


class AloneCounters:
    """Counters of a single instance."""

    def __init__(self) -> None:
        self._interval, self._used = 0, Counter[tuple[str, Kind]]()
        self._places: dict[str, list[str]] = {}

    def exchange(self, interval: int, keep_s: float, used: Mapping[tuple[str, Kind], float]) -> Used:
        """Add to the counts of an interval and return the totals."""
        if interval != self._interval:
            self._interval, self._used = interval, Counter()
        for key, amount in used.items():
            self._used[key] += amount  # type: ignore[assignment]
        return cast("Used", dict(self._used))

    def without_place(self, tenant: str, limit: int, keep_s: float, cameras: Sequence[str]) -> frozenset[str]:
        """Return the cameras that got no slot because others, which still send, hold them all."""
        places = [camera for camera in self._places.get(tenant, ()) if camera in cameras]
        free = [camera for camera in cameras if camera not in places]
        self._places[tenant] = (places + free)[:limit]
        return frozenset(cameras) - frozenset(self._places[tenant])


class RedisCounters:
    """Counters in Redis: a hash for each interval, and a sorted set of cameras for each limited tenant.

    Args:
        client: Redis; every method raises its errors.
        clock: Unix seconds; instances' clocks may differ by less than an interval.
    """

    def __init__(self, client: Any, clock: Any = time.time) -> None:
        self._client, self._clock = client, clock

    def exchange(self, interval: int, keep_s: float, used: Mapping[tuple[str, Kind], float]) -> Used:
        """Add to the counts of an interval and return the totals of all instances."""
        key = _USED.format(interval=interval)

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for (tenant, kind), amount in used.items():
                    pipe.hincrbyfloat(key, f"{kind}:{tenant}", amount)
                pipe.expire(key, max(1, round(3 * keep_s)))
                pipe.hgetall(key)
                # Somebody may have written an invalid number for one tenant: the others still count.
                return required(pipe.execute(raise_on_error=False)[-1:])

        (answers,) = with_types(self._client, {key: "hash"}, ask)
        counted: Used = {}
        for field, text in answers.items():
            name, number = text_of(field), number_of(text)
            # Others may have written a wrong count; a negative one must not increase a tenant's quota.
            if name is not None and number is not None:
                counted[_named(name)] = max(0.0, number)
        return counted

    def without_place(self, tenant: str, limit: int, keep_s: float, cameras: Sequence[str]) -> frozenset[str]:
        """Give sending cameras one of their tenant's `limit` slots; return the cameras that got none."""
        key, refused = _CAMERAS.format(tenant=tenant), set[str]()
        for first in range(0, len(cameras), _BATCH):
            batch = cameras[first : first + _BATCH]
            arguments = (round(self._clock(), 3), keep_s, limit, *batch)
            answers = map(text_of, self._client.eval(_PLACES, 1, key, *arguments))
            refused.update(name for name in answers if name is not None)
        return frozenset(refused)


def _named(field: str) -> tuple[str, Kind]:
    kind, _, tenant = field.partition(":")
    return tenant, cast("Kind", kind)
