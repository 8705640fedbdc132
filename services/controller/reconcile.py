"""Brings topics in line with the resources, and the resources' statuses in line with the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from textwrap import shorten
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from lookout.rules import RuleError
from lookout.rules.notifications import target_text
from lookout.runtime.worker import View
from lookout.services.controller import convert
from lookout.services.controller.cluster import CAMERA, NOTIFICATION, WATCH, Kind
from lookout.services.controller.convert import Condition, ResourceError
from lookout.services.controller.rounds import Resource, ResourceApi, Rounds, conditions_before, is_held
from lookout.services.controller.statuses import StatusQueue
from lookout.text import clean
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.notifications_pb2 import Notification
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERAS, NOTIFICATIONS, WATCHES, WireError, from_json, to_json
from lookout.wire.limits import ALL_WATCHES, NOTIFICATIONS as MOST_NOTIFICATIONS

M = TypeVar("M", bound=Message)
QUESTION_WIDTH = 60
"""Most characters of a question in `kubectl get watches`, which makes all rows as wide as the widest one."""
Publish = Callable[[str, str, bytes | None], None]
_TOPICS: Final = {CAMERA: CAMERAS.name, WATCH: WATCHES.name, NOTIFICATION: NOTIFICATIONS.name}


class Reconciler(Rounds):
    """Compares cameras, watches and notifications with their records.

    Records whose id has no resource are left alone, since other programs write to the same topics.

    Args:
        api: The Kubernetes API.
        views: Returns a topic's table by its name.
        publish: Writes a record (topic, key, value; None deletes); returns once Kafka has it.
        watch_status: Returns a watch's activity, given its id and first version.
        camera_status: Returns the agent's report on a camera, given its id.
        status_s: Shortest time in seconds between two writes of a status whose conditions stay the same.
        status_writes_s: Maximum number of status writes per second, all resources together.
        round_s: Longest time of one round, in seconds.
        clock: Monotonic seconds.

    Attributes:
        statuses: The queue of statuses. `RecordingJobs` writes through it too, so that its rates hold for all
            statuses.
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
        self._views = views
        self._publish = publish
        self._watch_status = watch_status
        self._camera_status = camera_status
        statuses = StatusQueue(api.set_status, writes_s=status_writes_s, resource_s=status_s, clock=clock)
        super().__init__(api, (NOTIFICATION, WATCH, CAMERA), statuses, round_s=round_s, clock=clock)

    def update(self, kind: Kind, resource: Resource) -> None:
        """See `Rounds.update`."""
        metadata = resource["metadata"]
        name = metadata["name"]
        if metadata.get("deletionTimestamp"):
            if is_held(resource):
                self.remove(kind, name)
                self.let_go(kind, resource)
            self.statuses.forget((kind.name, name))
            return
        if not self.hold(kind, resource):
            return
        status = {CAMERA: self._camera, WATCH: self._watch, NOTIFICATION: self._notification}[kind]
        self.tell(kind, resource, status(resource))

    def remove(self, kind: Kind, name: str) -> None:
        """See `Rounds.remove`."""
        topic = _TOPICS[kind]
        if self._views(topic).newest(name) is not None:
            self._publish(topic, name, None)
            self._log.info("removed", kind=kind.name, name=name)

    def _camera(self, resource: Resource) -> dict[str, Any]:
        try:
            desired = convert.camera(resource)
        except ResourceError as error:
            return {"conditions": [Condition("Accepted", False, "Invalid", str(error))]}
        if desired != self._existing(CAMERAS.name, desired.id, Camera):
            self._publish(CAMERAS.name, desired.id, to_json(desired))
            self._log.info("published", kind="Camera", name=desired.id)
        status = self._camera_status(desired.id)
        streaming = status.pop("streaming", None) or conditions_before(resource).get(
            "Streaming", convert.NO_AGENT
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
            full = f"the topic already has the maximum of {ALL_WATCHES} watches"
            return {"conditions": [Condition("Accepted", False, "TooMany", full)]}
        if record is not None:
            self._publish(WATCHES.name, name, to_json(record))
            self._log.info("published", kind="Watch", name=name, version=record.version)
        version = record.version if record is not None else existing.version if existing else 0
        accepted = Condition("Accepted", True, "Published")
        # If another program wrote the record before the resource was created, its version is lower.
        first = min(int(created.timestamp()), version)
        return {"version": version, **self._watch_status(name, first), "conditions": [accepted]}

    def _notification(self, resource: Resource) -> dict[str, Any]:
        try:
            desired = convert.notification(resource)
        except (ResourceError, RuleError) as error:
            return {"conditions": [Condition("Accepted", False, "Invalid", str(error))]}
        existing = self._existing(NOTIFICATIONS.name, desired.id, Notification)
        if existing is None and len(self._views(NOTIFICATIONS.name).history) >= MOST_NOTIFICATIONS:
            full = f"the topic already has the maximum of {MOST_NOTIFICATIONS} notifications"
            return {"conditions": [Condition("Accepted", False, "TooMany", full)]}
        if desired != existing:
            self._publish(NOTIFICATIONS.name, desired.id, to_json(desired))
            self._log.info("published", kind="Notification", name=desired.id)
        target = shorten(target_text(desired), QUESTION_WIDTH, placeholder=" …")
        return {"target": target, "conditions": [Condition("Accepted", True, "Published")]}

    def _existing(self, topic: str, name: str, kind: type[M]) -> M | None:
        value = self._views(topic).newest(name)
        if value is None:
            return None
        try:
            return from_json(value, kind)
        except WireError:
            return None
