"""Queues statuses and writes the newest of each resource, at a rate that the API server can take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lookout.services.controller.cluster import Kind, in_words
from lookout.text import clean

Write = Callable[[Kind, Mapping[str, Any], Mapping[str, Any]], object]
#: shortest time between two writes of one resource's status, in seconds, whatever changed
_SHORTEST_S = 1.0


@dataclass(slots=True)
class Bucket:
    """A token bucket for writes: `rate` per second, with bursts of up to one second's worth."""

    rate: float
    at: float
    tokens: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.rate

    def fill(self, now: float) -> None:
        """Add the tokens earned until `now`."""
        self.tokens = min(max(1.0, self.rate), self.tokens + (now - self.at) * self.rate)
        self.at = now


@dataclass(frozen=True, slots=True)
class Waiting:
    """A status to write."""

    kind: Kind
    resource: Mapping[str, Any]
    status: Mapping[str, Any]
    urgent: bool

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name of the resource."""
        return self.kind.name, self.resource["metadata"]["name"]


class StatusQueue:
    """Writes statuses, urgent ones first. A newer status of a resource replaces a waiting one.

    Numbers change all the time. They get at most half of the writes, so that a changed condition does not
    wait for them.

    Args:
        write: Writes a status to the API server.
        writes_s: Maximum number of writes per second, all resources together.
        resource_s: Shortest time in seconds between two writes of one resource's numbers.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        write: Write,
        *,
        writes_s: float,
        resource_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._resource_s = resource_s
        self._clock = clock
        self._all_writes = Bucket(writes_s, clock())
        self._number_writes = Bucket(writes_s / 2, clock())
        self._urgent: dict[tuple[str, str], Waiting] = {}
        self._not_urgent: dict[tuple[str, str], Waiting] = {}
        self._last_write_s: dict[tuple[str, str], float] = {}

    def put(self, entry: Waiting) -> None:
        """Queue a status, to be written as soon as the rates allow."""
        urgent = entry.urgent or entry.key in self._urgent
        self.drop(entry.key)
        (self._urgent if urgent else self._not_urgent)[entry.key] = entry

    def drop(self, key: tuple[str, str]) -> None:
        """Remove a resource's waiting status, because the resource already has the right one."""
        self._urgent.pop(key, None)
        self._not_urgent.pop(key, None)

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a resource that is gone."""
        self.drop(key)
        self._last_write_s.pop(key, None)

    def is_due(self, kind: Kind, name: str) -> bool:
        """Return whether a resource's numbers may be written again."""
        return self._clock() - self._last_write_s.get((kind.name, name), -1e9) >= self._resource_s

    def spare(self) -> int:
        """Return how many more statuses in which only numbers changed can be written now."""
        self._number_writes.fill(self._clock())
        return int(self._number_writes.tokens) - len(self._not_urgent)

    def write(self) -> str | None:
        """Write as many statuses as the rates allow, up to the first failure. Return the failure's reason, or
        None if all writes worked.
        """
        now = self._clock()
        self._all_writes.fill(now)
        self._number_writes.fill(now)
        for waiting, pause_s in ((self._urgent, _SHORTEST_S), (self._not_urgent, self._resource_s)):
            bucket = self._number_writes if waiting is self._not_urgent else self._all_writes
            if bucket.tokens < 1:
                continue
            for key in [key for key in waiting if now - self._last_write_s.get(key, -1e9) >= pause_s]:
                if min(bucket.tokens, self._all_writes.tokens) < 1:
                    break
                self._all_writes.tokens -= 1
                if bucket is not self._all_writes:
                    bucket.tokens -= 1
                if (why := self._write_one(waiting.pop(key), now)) is not None:
                    return why
        return None

    def _write_one(self, entry: Waiting, now: float) -> str | None:
        self._last_write_s[entry.key] = now
        try:
            self._write(entry.kind, entry.resource, entry.status)
        except Exception as error:  # whatever fails, the remaining statuses are written in the next round
            self.put(entry)  # queued again, after the remaining ones
            why = clean(f"{type(error).__name__}: {in_words(error)}", 300)
            return f"{entry.kind.name} {clean(entry.key[1], 100)}: {why}"
        return None
