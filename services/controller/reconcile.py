"""Bring the topics to what the resources say, and the resources' status to what the fleet says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
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

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind."""

    def set_finalizers(self, kind: Kind, resource: Resource, finalizers: list[str]) -> None:
        """Replace a resource's finalizers."""

    def set_status(self, kind: Kind, resource: Resource, status: Mapping[str, Any]) -> None:
        """Merge into a resource's status."""


class Reconciler:
    """Compares every resource with its record. Each call of `reconcile` is one round; it may be repeated.

    Records of ids without a resource are left alone: other programs write the same topics.

    Args:
        api: The Kubernetes API.
        views: Tables of the topics by name.
        publish: Writes a record (topic, key, value; None deletes) and returns once Kafka has it.
        watch_status: What happened to a watch, by its id and first version.
        camera_status: What its agent says of a camera, by id.
        status_s: A status whose conditions stay the same is written at most so often.
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
        round_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._views = views
        self._publish = publish
        self._watch_status = watch_status
        self._camera_status = camera_status
        self._status_s = status_s
        self._round_s = round_s
        self._clock = clock
        self._first = 0  # where the next round begins
        self._written: dict[tuple[str, str], float] = {}
        self._log = logs.get("reconcile")

    def reconcile(self) -> None:
        """Go through every resource once, for `round_s` at most; the next round continues after the last one.

        A failure of one resource stands in its status and stops no other.

        Raises:
            RoundError: Some failed, or the time was over before the last; the text says how many and why.
        """
        deadline = self._clock() + self._round_s
        work = [(CAMERA, CAMERAS.name, resource, self._camera) for resource in self._api.all(CAMERA)]
        work += [(WATCH, WATCHES.name, resource, self._watch) for resource in self._api.all(WATCH)]
        first = self._first % len(work) if work else 0
        failures: list[str] = []
        for count, (kind, topic, resource, update) in enumerate(work[first:] + work[:first]):
            if self._clock() >= deadline:
                self._first = first + count
                failures.append(f"{len(work) - count} of {len(work)} resources wait for the next round")
                break
            if (why := self._isolated(kind, topic, resource, update)) is not None:
                failures.append(f"{kind.name} {clean(resource['metadata'].get('name', '?'), 100)}: {why}")
        else:
            self._first = 0
        if failures:
            raise RoundError(f"{len(failures)} failures, the first: {failures[0]}")

    def _isolated(
        self, kind: Kind, topic: str, resource: Resource, update: Callable[[Resource], dict[str, Any]]
    ) -> str | None:
        """Bring one resource up to date; why that failed, which its status says too."""
        try:
            self._one(kind, topic, resource, update)
            return None
        except Exception as error:  # of any kind: what one resource causes must not stop the others
            why = clean(f"{type(error).__name__}: {error}", 300)
            self._log.warning(
                "a resource failed", kind=kind.name, name=resource["metadata"].get("name"), error=why
            )
        with suppress(Exception):  # where the API server is away, the next round tells it
            self._tell(kind, resource, {"conditions": [Condition("Accepted", False, "Failed", why)]})
        return why

    def _one(
        self, kind: Kind, topic: str, resource: Resource, update: Callable[[Resource], dict[str, Any]]
    ) -> None:
        metadata = resource["metadata"]
        name, finalizers = metadata["name"], list(metadata.get("finalizers", ()))
        if metadata.get("deletionTimestamp"):
            if FINALIZER in finalizers:
                if self._views(topic).newest(name) is not None:
                    self._publish(topic, name, None)
                    self._log.info("removed", kind=kind.name, name=name)
                finalizers.remove(FINALIZER)
                self._api.set_finalizers(kind, resource, finalizers)
            self._written.pop((kind.name, name), None)
            return
        if FINALIZER not in finalizers:
            self._api.set_finalizers(kind, resource, [*finalizers, FINALIZER])
        self._tell(kind, resource, update(resource))

    def _camera(self, resource: Resource) -> dict[str, Any]:
        try:
            desired = convert.camera(resource)
        except ResourceError as error:
            return {"conditions": [Condition("Accepted", False, "Invalid", str(error))]}
        if desired != self._existing(CAMERAS.name, desired.id, Camera):
            self._publish(CAMERAS.name, desired.id, to_json(desired))
            self._log.info("published", kind="Camera", name=desired.id)
        status = self._camera_status(desired.id)
        streaming = status.pop("streaming", None) or Condition(
            "Streaming", False, "NoAgent", "no agent has it"
        )
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
        """Write a status that differs; numbers alone only every `status_s`."""
        generation = int(resource["metadata"]["generation"])
        before = resource.get("status", {})
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        conditions = convert.conditions(before.get("conditions", ()), found["conditions"], generation, now)
        status = {**found, "observedGeneration": generation, "conditions": conditions}
        if all(before.get(name) == value for name, value in status.items()):
            return
        key = (kind.name, resource["metadata"]["name"])
        urgent = before.get("conditions") != conditions or before.get("observedGeneration") != generation
        if urgent or time.monotonic() - self._written.get(key, -1e9) >= self._status_s:
            self._api.set_status(kind, resource, status)
            self._written[key] = time.monotonic()
