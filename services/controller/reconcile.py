"""Bring the topics to what the resources say, and the resources' status to what the fleet says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from textwrap import shorten
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from lookout.errors import LookoutError
from lookout.observe import logs
from lookout.outside_text import clean
from lookout.rules import RuleError
from lookout.services.controller import convert
from lookout.services.controller.cluster import CAMERA, FINALIZER, WATCH, Kind
from lookout.services.controller.convert import Condition, ResourceError
from lookout.services.controller.statuses import StatusQueue, Waiting
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERAS, WATCHES, WireError, from_json, to_json
from lookout.wire.limits import ALL_WATCHES
from lookout.worker import View

M = TypeVar("M", bound=Message)
Resource = Mapping[str, Any]
QUESTION_WIDTH = 60
"""Characters of a question in a column: `kubectl get watches` makes rows as wide as the widest."""
Publish = Callable[[str, str, bytes | None], None]


class RoundError(LookoutError):
    """A round in which some resources failed; the others are up to date."""


class ResourceApi(Protocol):
    """What reconciling needs of the Kubernetes API (`cluster.Resources`)."""

    def known(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind as it was last seen."""

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Return a resource as it was last seen; None where there is none."""

    def set_finalizers(self, kind: Kind, resource: Resource, finalizers: list[str]) -> None:
        """Replace a resource's finalizers."""

    def set_status(self, kind: Kind, resource: Resource, status: Mapping[str, Any]) -> None:
        """Merge into a resource's status."""


class Marks:
    """Resources to look at, in the order in which they were marked. Marked by any thread, taken by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[tuple[Kind, str], None] = {}

    def add(self, kind: Kind, name: str) -> None:
        """Mark a resource; one that is marked keeps its place."""
        with self._lock:
            self._keys.setdefault((kind, name))

    def take(
        self, count: int | None = None, when: Callable[[Kind, str], bool] = lambda *_: True
    ) -> list[tuple[Kind, str]]:
        """The first `count` marked resources, or all, for which `when` is true; they are marked no longer."""
        with self._lock:
            keys = list(islice((key for key in self._keys if when(*key)), count))
            for key in keys:
                del self._keys[key]
            return keys


class Reconciler:
    """Compares resources with their records: those that changed at once, all of them with `reconcile`.

    Records of ids without a resource are left alone: other programs write the same topics.

    Args:
        api: The Kubernetes API.
        views: Tables of the topics by name.
        publish: Writes a record (topic, key, value; None deletes) and returns once Kafka has it.
        watch_status: What happened to a watch, by its id and first version.
        camera_status: What its agent says of a camera, by id.
        status_s: A status whose conditions stay the same is written at most so often.
        status_writes_s: Writes of statuses a second, all resources together.
        round_s: Longest time of one round.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        api: ResourceApi,
        views: Callable[[str], View],
        publish: Publish,
        watch_status: Callable[[str, int], dict[str, Any]],
        camera_status: Callable[[str], dict[str, Any]],
        *,
        status_s: float = 10.0,
        status_writes_s: float = 20.0,
        round_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._views = views
        self._publish = publish
        self._watch_status = watch_status
        self._camera_status = camera_status
        self._round_s = round_s
        self._clock = clock
        self._changed = Marks()
        self._news = {CAMERA: Marks(), WATCH: Marks()}
        self._statuses = StatusQueue(
            api.set_status, writes_s=status_writes_s, resource_s=status_s, clock=clock
        )
        self._log = logs.get("reconcile")

    def mark(self, kind: Kind, name: str) -> None:
        """Look at a resource in the next round: it changed, or what its conditions say. From any thread."""
        self._changed.add(kind, name)

    def mark_news(self, kind: Kind, name: str) -> None:
        """Numbers of a status changed: they are written when there is room. From any thread."""
        self._news[kind].add(kind, name)

    def reconcile(self) -> None:
        """One round over every resource.

        Raises:
            RoundError: As `work_off`.
        """
        for kind in (CAMERA, WATCH):
            for resource in self._api.known(kind):
                self.mark(kind, resource["metadata"]["name"])
        self.work_off()

    def work_off(self) -> None:
        """Look at what is marked, for `round_s` at most; the next round continues with the rest.

        A failure of one resource stands in its status and stops no other.

        Raises:
            RoundError: Some failed, or the time was over before the last; the text says how many and why.
        """
        deadline = self._clock() + self._round_s
        marked = self._changed.take()
        # There are few watches and many cameras: watches have half of the room, cameras what is left.
        room = max(0, self._statuses.spare())
        watches = self._news[WATCH].take((room + 1) // 2, self._statuses.is_due)
        marked += watches + self._news[CAMERA].take(room - len(watches), self._statuses.is_due)
        failures: list[str] = []
        unwritten: str | None = None
        for count, (kind, name) in enumerate(marked):
            if self._clock() >= deadline:
                for key in marked[count:]:
                    self._changed.add(*key)
                failures.append(f"{len(marked) - count} of {len(marked)} resources wait for the next round")
                break
            if (why := self._isolated(kind, name)) is not None:
                self._changed.add(kind, name)
                failures.append(f"{kind.name} {clean(name, 100)}: {why}")
            if unwritten is None:  # an API server that is away makes each write wait
                unwritten = self._statuses.write()
        unwritten = unwritten or self._statuses.write()
        failures += [unwritten] if unwritten else []
        if failures:
            raise RoundError(f"{len(failures)} failures, the first: {failures[0]}")

    def _isolated(self, kind: Kind, name: str) -> str | None:
        """Bring one resource up to date; why that failed, which its status says too."""
        resource = self._api.get(kind, name)
        if resource is None:
            self._statuses.forget((kind.name, name))
            return None
        try:
            self._update(kind, resource)
            return None
        except Exception as error:  # of any kind: what one resource causes must not stop the others
            why = clean(f"{type(error).__name__}: {error}", 300)
            self._log.warning("a resource failed", kind=kind.name, name=name, error=why)
        self._tell(kind, resource, {"conditions": [Condition("Accepted", False, "Failed", why)]})
        return why

    def _update(self, kind: Kind, resource: Resource) -> None:
        metadata = resource["metadata"]
        name, finalizers = metadata["name"], list(metadata.get("finalizers", ()))
        topic = CAMERAS.name if kind is CAMERA else WATCHES.name
        if metadata.get("deletionTimestamp"):
            if FINALIZER in finalizers:
                if self._views(topic).newest(name) is not None:
                    self._publish(topic, name, None)
                    self._log.info("removed", kind=kind.name, name=name)
                finalizers.remove(FINALIZER)
                self._api.set_finalizers(kind, resource, finalizers)
            self._statuses.forget((kind.name, name))
            return
        if FINALIZER not in finalizers:
            self._api.set_finalizers(kind, resource, [*finalizers, FINALIZER])
        status = self._camera(resource) if kind is CAMERA else self._watch(resource)
        self._tell(kind, resource, status)

    def _camera(self, resource: Resource) -> dict[str, Any]:
        try:
            desired = convert.camera(resource)
        except ResourceError as error:
            return {"conditions": [Condition("Accepted", False, "Invalid", str(error))]}
        if desired != self._existing(CAMERAS.name, desired.id, Camera):
            self._publish(CAMERAS.name, desired.id, to_json(desired))
            self._log.info("published", kind="Camera", name=desired.id)
        status = self._camera_status(desired.id)
        streaming = status.pop("streaming", None) or _streaming_before(resource)
        if desired.paused:
            streaming = Condition("Streaming", False, "Paused", "spec.paused is set")
        return {**status, "conditions": [Condition("Accepted", True, "Published"), streaming]}

    def _watch(self, resource: Resource) -> dict[str, Any]:
        title = shorten(clean(resource["spec"].get("question", "")), QUESTION_WIDTH, placeholder=" …")
        return {"question": title, **self._published_watch(resource)}

    def _published_watch(self, resource: Resource) -> dict[str, Any]:
        name = resource["metadata"]["name"]
        existing = self._existing(WATCHES.name, name, Watch)
        try:
            desired = convert.watch(resource)
            created = datetime.fromisoformat(resource["metadata"]["creationTimestamp"])
            record = convert.versioned(desired, existing, created, int(time.time() * 1000))
        except (ResourceError, RuleError) as error:
            return {"conditions": [Condition("Accepted", False, "Invalid", str(error))]}
        if existing is None and len(self._views(WATCHES.name).history) >= ALL_WATCHES:
            full = f"the topic has {ALL_WATCHES} watches, which is the most"
            return {"conditions": [Condition("Accepted", False, "TooMany", full)]}
        if record is not None:
            self._publish(WATCHES.name, name, to_json(record))
            self._log.info("published", kind="Watch", name=name, version=record.version)
        version = record.version if record is not None else existing.version if existing else 0
        accepted = Condition("Accepted", True, "Published")
        # A record that another program wrote before the resource was made keeps its lower version.
        first = min(int(created.timestamp()), version)
        return {"version": version, **self._watch_status(name, first), "conditions": [accepted]}

    def _existing(self, topic: str, name: str, kind: type[M]) -> M | None:
        value = self._views(topic).newest(name)
        if value is None:
            return None
        try:
            return from_json(value, kind)
        except WireError:
            return None

    def _tell(self, kind: Kind, resource: Resource, found: dict[str, Any]) -> None:
        """Have a status that differs written; where numbers alone differ, only while there is room."""
        generation = int(resource["metadata"]["generation"])
        name = resource["metadata"]["name"]
        before = resource.get("status", {})
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        conditions = convert.conditions(before.get("conditions", ()), found["conditions"], generation, now)
        status = {**found, "observedGeneration": generation, "conditions": conditions}
        if all(before.get(field) == value for field, value in status.items()):
            self._statuses.drop((kind.name, name))
            return
        urgent = before.get("conditions") != conditions or before.get("observedGeneration") != generation
        if urgent or self._statuses.spare() > 0:
            self._statuses.put(Waiting(kind, resource, status, urgent))
        else:
            self.mark_news(kind, name)


def _streaming_before(resource: Resource) -> Condition:
    """The condition Streaming of a resource's status, for a camera whose report could not be read."""
    for condition in resource.get("status", {}).get("conditions", ()):
        if condition["type"] == "Streaming":
            return Condition(
                "Streaming", condition["status"] == "True", condition["reason"], condition["message"]
            )
    return convert.NO_AGENT
