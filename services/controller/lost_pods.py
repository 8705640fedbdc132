"""Removes pods of lost nodes, so that their StatefulSets start them elsewhere.

Kubernetes keeps a StatefulSet's pod until the pod's kubelet reports that it ended, which a lost kubelet never
does. Removing the pod is safe even if its process still runs, because Kafka fences the older of two processes
of one pod.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from kubernetes import client
from kubernetes.client.rest import ApiException

from lookout.runtime.observe import logs
from lookout.services.controller.cluster import PatientClient

PATIENCE_S: Final = 10.0
"""Seconds that a live kubelet gets to end a pod that its node's taint evicts."""
#: type and reason of the condition that pods get from their node's taint
_EVICTED = ("DisruptionTarget", "DeletionByTaintManager")
_GONE = (404, 409)


class LostPods:
    """Finds and removes pods that were evicted because their node is lost but that do not end.

    Args:
        namespace: The release's namespace.
        selector: Labels of the release's pods.
        removed: Called with each pod after its removal.
        clock: Returns the time; it must agree with the API server's.
    """

    def __init__(
        self,
        namespace: str,
        selector: str,
        removed: Callable[[Any], object],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._namespace, self._selector, self._removed, self._clock = namespace, selector, removed, clock
        self._core = client.CoreV1Api(PatientClient())
        self._log = logs.get("pods")

    def remove(self) -> None:
        """Remove lost pods, and log each.

        Raises:
            ApiException: The API server does not answer, or the permission is missing.
        """
        now = self._clock()
        for pod in self._core.list_namespaced_pod(self._namespace, label_selector=self._selector).items:
            if not is_lost(pod, now):
                continue
            metadata = pod.metadata
            body = client.V1DeleteOptions(
                grace_period_seconds=0, preconditions=client.V1Preconditions(uid=metadata.uid)
            )
            try:
                self._core.delete_namespaced_pod(metadata.name, self._namespace, body=body)
            except ApiException as error:
                if error.status not in _GONE:
                    raise
            else:
                self._log.warning(
                    "removed a pod of a lost node", pod=metadata.name, node=pod.spec.node_name or ""
                )
                self._removed(pod)


def is_lost(pod: Any, now: datetime) -> bool:
    """Return whether a StatefulSet's pod was evicted by its node's taint but was not ended by its kubelet.

    Args:
        pod: A pod of the Kubernetes client.
        now: The time.
    """
    owners = [owner.kind for owner in pod.metadata.owner_references or ()]
    if pod.metadata.deletion_timestamp is None or owners != ["StatefulSet"]:
        return False
    return any(
        (condition.type, condition.reason) == _EVICTED
        and (now - condition.last_transition_time).total_seconds() > PATIENCE_S
        for condition in pod.status.conditions or ()
    )
