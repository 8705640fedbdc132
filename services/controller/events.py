"""Kubernetes events about faults, which `kubectl describe` and `kubectl get events` show."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kubernetes import client
from kubernetes.client.rest import ApiException

from lookout.runtime.observe import logs
from lookout.services.controller.cluster import API_ERRORS, GROUP, VERSION, Kind, PatientClient, in_words
from lookout.services.controller.statuses import Bucket
from lookout.text import clean

COMPONENT: Final = "lookout-controller"
#: reasons of unmet conditions that are normal, not faults
_USUAL: Final = frozenset({"Connecting", "Paused", "Waiting", "Running", "Done", "Cancelled"})
#: normal for a new camera, but a fault for a camera that has streamed
_NO_AGENT: Final = "NoAgent"
_RATE_S: Final = 10.0  # most events per second; further ones are dropped, since the status says the same
_CALL_S: Final = 5.0
_PAUSE_S: Final = 60.0  # no events for this long after a failure, so that events do not delay statuses
_MESSAGE: Final = 1000  # bytes; the API accepts 1,024
_NAME: Final = 200  # characters of a resource's name in its event's name, which may have 253
_EXISTS: Final = 409


class Events:
    """Writes an event when a resource gets a fault, and when the fault is gone.

    A fleet without faults writes no events. Statuses say the same as events, so an event that cannot be
    written is dropped.

    Args:
        namespace: The resources' namespace.
        clock: The time.
    """

    def __init__(self, namespace: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._namespace, self._clock = namespace, clock
        self._api = client.CoreV1Api(PatientClient(_CALL_S))
        self._bucket = Bucket(_RATE_S, time.monotonic())
        self._paused_until = 0.0
        self._log = logs.get("events")

    def changed(self, kind: Kind, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write events for the conditions that differ in a resource's new status.

        Args:
            kind: Kind of the resource.
            resource: The resource with its previous status.
            status: The new status.
        """
        regarding = self._regarding(f"{GROUP}/{VERSION}", kind.name, **_identity(resource["metadata"]))
        before = {row["type"]: row for row in resource.get("status", {}).get("conditions", ())}
        for row in status.get("conditions", ()):
            last = before.get(row["type"])
            if last is not None and _same(last, row):
                continue
            streamed = last is not None and last["status"] == "True"
            if _wrong(row) and (row["reason"] != _NO_AGENT or streamed):
                self._tell(regarding, "Warning", row["reason"], row["message"])
            elif last is not None and _wrong(last) and last["reason"] != _NO_AGENT and not _wrong(row):
                self._tell(regarding, "Normal", row["reason"], f"no longer {last['reason']}")

    def lost_pod(self, pod: Any) -> None:
        """Write an event that says that a lost node's pod was removed.

        Args:
            pod: A pod of the Kubernetes client.
        """
        regarding = self._regarding("v1", "Pod", pod.metadata.name, pod.metadata.uid)
        text = f"removed, because node {pod.spec.node_name} is lost; the pod starts again on another node"
        self._tell(regarding, "Warning", "NodeLost", text)

    def _regarding(self, version: str, kind: str, name: str, uid: str) -> client.V1ObjectReference:
        return client.V1ObjectReference(
            api_version=version, kind=kind, name=name, namespace=self._namespace, uid=uid
        )

    def _tell(self, regarding: client.V1ObjectReference, type_: str, reason: str, text: str) -> None:
        now = time.monotonic()
        self._bucket.fill(now)
        if now < self._paused_until or self._bucket.tokens < 1:
            return
        self._bucket.tokens -= 1
        at = self._clock()
        # The name includes the minute, so that the API rejects an equal event within the same minute.
        facts = f"{regarding.kind} {regarding.uid} {reason} {text} {at:%Y%m%d%H%M}"
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        own = client.V1ObjectMeta(
            name=f"{regarding.name[:_NAME].rstrip('.-')}.{digest}", namespace=self._namespace
        )
        event = client.CoreV1Event(
            metadata=own,
            involved_object=regarding,
            type=type_,
            reason=reason,
            message=clean(text).encode()[:_MESSAGE].decode(errors="ignore") or reason,
            source=client.V1EventSource(component=COMPONENT),
            first_timestamp=at,
            last_timestamp=at,
            count=1,
        )
        try:
            self._api.create_namespaced_event(self._namespace, event)
        except API_ERRORS as error:
            if isinstance(error, ApiException) and error.status == _EXISTS:
                return
            self._paused_until = now + _PAUSE_S
            self._log.warning(
                "an event was not written", name=regarding.name, reason=reason, error=in_words(error)
            )


def _identity(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {"name": metadata["name"], "uid": metadata.get("uid", "")}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["status"], one["reason"]) == (other["status"], other["reason"])


def _wrong(row: Mapping[str, Any]) -> bool:
    """Return whether a condition reports a fault."""
    if row["type"] == "Finished":
        return row["status"] == "True" and row["reason"] not in _USUAL
    return row["status"] == "False" and row["reason"] not in _USUAL
