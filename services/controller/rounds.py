"""Rounds over marked resources. A failing resource affects no other, and its status says why it failed."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from lookout.errors import LookoutError
from lookout.runtime.observe import logs
from lookout.services.controller.cluster import FINALIZER, Kind, in_words
from lookout.services.controller.convert import Condition, conditions
from lookout.services.controller.statuses import StatusQueue, Waiting
from lookout.text import clean

Resource = Mapping[str, Any]
Key = tuple[Kind, str]


class RoundError(LookoutError):
    """Some resources failed in a round, or are left for the next one."""


class ResourceApi(Protocol):
    """The part of the Kubernetes API that reconciling needs (`cluster.Resources`)."""

    def known(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind, as last seen."""

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Return a resource, as last seen; None if it is gone."""

    def set_finalizers(self, kind: Kind, resource: Resource, finalizers: list[str]) -> bool:
        """Replace a resource's finalizers. Return False if the resource was changed or deleted meanwhile."""

    def set_status(self, kind: Kind, resource: Resource, status: Mapping[str, Any]) -> None:
        """Merge fields into a resource's status."""


class Marks:
    """Resources to update, in the order in which they were marked. Any thread may mark, one thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[Key, None] = {}

    def add(self, kind: Kind, name: str) -> None:
        """Mark a resource; an already marked one keeps its position."""
        with self._lock:
            self._keys.setdefault((kind, name))

    def take(
        self, count: int | None = None, when: Callable[[Kind, str], bool] = lambda *_: True
    ) -> list[Key]:
        """Unmark and return the first `count` marked resources (None: all) for which `when` is true."""
        with self._lock:
            keys = list(islice((key for key in self._keys if when(*key)), count))
            for key in keys:
                del self._keys[key]
            return keys


class Rounds(ABC):
    """Brings marked resources up to date in limited time. A failing resource does not affect other
    resources. `work_off` takes those that changed, `reconcile` all of them.

    Args:
        api: The Kubernetes API.
        kinds: The kinds of resources, in the order in which their changed numbers are written.
        statuses: The queue of statuses; several `Rounds` may share it and its rates.
        round_s: Longest time of one round, in seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        api: ResourceApi,
        kinds: Sequence[Kind],
        statuses: StatusQueue,
        *,
        round_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self.statuses = api, statuses
        self._finalized: set[Key] = set()
        self._round_s, self._clock = round_s, clock
        self._changed = Marks()
        self._news = {kind: Marks() for kind in kinds}
        self._log = logs.get("reconcile")

    @abstractmethod
    def update(self, kind: Kind, resource: Resource) -> None:
        """Bring one resource up to date."""

    @abstractmethod
    def remove(self, kind: Kind, name: str) -> None:
        """Remove what was written for a resource that vanished without notice, which can happen if it was
        deleted just as it got its finalizer."""

    def mark(self, kind: Kind, name: str) -> None:
        """Have the next round look at a resource that changed, or whose conditions changed. From any
        thread."""
        self._changed.add(kind, name)

    def mark_news(self, kind: Kind, name: str) -> None:
        """Note that numbers of a status changed: they are written when there is room. From any thread."""
        self._news[kind].add(kind, name)

    def reconcile(self) -> None:
        """Do a round over every resource.

        Raises:
            RoundError: As for `work_off`.
        """
        for kind in self._news:
            for resource in self._api.known(kind):
                self.mark(kind, resource["metadata"]["name"])
        self.work_off()

    def hold(self, kind: Kind, resource: Resource) -> bool:
        """Give a resource the finalizer before anything is written for it; return whether it has the
        finalizer now.

        A resource that was changed or deleted meanwhile is left to the next round. If a record were written
        for a deleted resource, it would stay, since nobody is told to remove it.
        """
        wanted = [*_finalizers(resource), FINALIZER]
        done = is_held(resource) or self._api.set_finalizers(kind, resource, wanted)
        if done:
            self._finalized.add((kind, resource["metadata"]["name"]))
        else:
            self.mark(kind, resource["metadata"]["name"])
        return done

    def let_go(self, kind: Kind, resource: Resource) -> None:
        """Remove a resource's finalizer; if the resource changed meanwhile, the next round does it."""
        key = (kind, resource["metadata"]["name"])
        if let_go(self._api, kind, resource):
            self._finalized.discard(key)
        else:
            self.mark(*key)

    def tell(self, kind: Kind, resource: Resource, fields: Mapping[str, Any]) -> None:
        """Queue a status that differs from the resource's; if only numbers differ, only if the rates
        allow.

        Args:
            kind: Kind of the resource.
            resource: The resource as last seen.
            fields: The new status, with `conditions` as a list of `Condition`.
        """
        name = resource["metadata"]["name"]
        status = _new_status(kind, resource, fields)
        if status is None:
            self.statuses.drop((kind.name, name))
        elif status.urgent or self.statuses.spare() > 0:
            self.statuses.put(status)
        else:
            self.mark_news(kind, name)

    def work_off(self) -> None:
        """Bring marked resources up to date for at most `round_s`; the next round continues with the rest.

        If one fails, its status says so and the others are not affected.

        Raises:
            RoundError: Some resources failed or are left for the next round; the text says how many and why.
        """
        deadline = self._clock() + self._round_s
        marked = [*self._changed.take(), *self._take_news()]
        failures: list[str] = []
        failed: list[Key] = []
        unwritten: str | None = None
        for count, (kind, name) in enumerate(marked):
            if self._clock() >= deadline:
                for key in marked[count:]:
                    self._changed.add(*key)
                failures.append(
                    f"{len(marked) - count} of {len(marked)} resources are left for the next round"
                )
                break
            if (why := self._isolated(kind, name)) is not None:
                failed.append((kind, name))
                failures.append(f"{kind.name} {clean(name, 100)}: {why}")
            if unwritten is None:  # after a failure, further writes might each wait for the API server
                unwritten = self.statuses.write()
        # Failed resources go to the end, after those that were not reached, because a few that wait for Kafka
        # may take a whole round.
        for key in failed:
            self._changed.add(*key)
        unwritten = unwritten or self.statuses.write()
        failures += [unwritten] if unwritten else []
        if failures:
            raise RoundError(f"{len(failures)} failures, the first: {failures[0]}")

    def _take_news(self) -> list[Key]:
        room, keys = max(0, self.statuses.spare()), list[Key]()
        last = list(self._news)[-1]
        for kind, marks in self._news.items():
            # Each kind but the last gets half of the remaining writes, so that many cameras do not use up
            # those for watches.
            share = room if kind is last else (room + 1) // 2
            taken = marks.take(share, self.statuses.is_due)
            room -= len(taken)
            keys += taken
        return keys

    def _went(self, kind: Kind, name: str) -> None:
        self.statuses.forget((kind.name, name))
        if (kind, name) in self._finalized:
            self.remove(kind, name)
            self._finalized.discard((kind, name))

    def _isolated(self, kind: Kind, name: str) -> str | None:
        """Bring one resource up to date. Return None, or why that failed, which the resource's status then
        says too.
        """
        resource = self._api.get(kind, name)
        try:
            if resource is None:
                self._went(kind, name)
            else:
                self.update(kind, resource)
            return None
        except Exception as error:  # whatever fails, other resources must go on
            why = clean(f"{type(error).__name__}: {in_words(error)}", 300)
            self._log.warning("a resource failed", kind=kind.name, name=name, error=why)
        if resource is None:
            return why
        others = [known for known in conditions_before(resource).values() if known.type != "Accepted"]
        self.tell(kind, resource, {"conditions": [Condition("Accepted", False, "Failed", why), *others]})
        return why


def is_held(resource: Resource) -> bool:
    """Return whether a resource has the finalizer."""
    return FINALIZER in _finalizers(resource)


def let_go(api: ResourceApi, kind: Kind, resource: Resource) -> bool:
    """Remove a resource's finalizer. Return False if the resource was changed or deleted meanwhile."""
    return api.set_finalizers(kind, resource, [name for name in _finalizers(resource) if name != FINALIZER])


def _finalizers(resource: Resource) -> list[str]:
    return list(resource["metadata"].get("finalizers", ()))


def conditions_before(resource: Resource) -> dict[str, Condition]:
    """Return the conditions in a resource's status, by type."""
    return {
        row["type"]: Condition(row["type"], row["status"] == "True", row["reason"], row["message"])
        for row in resource.get("status", {}).get("conditions", ())
    }


def _new_status(kind: Kind, resource: Resource, fields: Mapping[str, Any]) -> Waiting | None:
    """Return the status to write, or None if the resource already has it. It is urgent unless only numbers
    changed.
    """
    generation = int(resource["metadata"]["generation"])
    before = resource.get("status", {})
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    stated = conditions(before.get("conditions", ()), fields["conditions"], generation, now)
    status = {**fields, "observedGeneration": generation, "conditions": stated}
    if all(before.get(field) == value for field, value in status.items()):
        return None
    urgent = before.get("conditions") != stated or before.get("observedGeneration") != generation
    return Waiting(kind, resource, status, urgent)
