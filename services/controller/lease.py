"""The lease that lets one controller work; it survives missing permissions and an API server that does not
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import urllib3
from kubernetes import client
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from lookout.runtime.observe import Health
from lookout.services.controller.cluster import PatientClient, in_words

T = TypeVar("T")
_NOT_FOUND = 404


class Lease(LeaseLock):  # type: ignore[misc]
    """The lock of `kubernetes.leaderelection` that survives network errors.

    The library catches only errors that the API server answers with. On a refused connection its thread would
    end: a follower would wait for ever, and a leader would continue without its lease.

    Args:
        name: Name of the lease.
        namespace: Namespace of the lease.
        identity: Who asks for it.
        health: Not ready while the lease cannot be read.
        call_s: Longest time of one call.

    Attributes:
        looked: Called before each read of the lease, as a sign that the thread runs.
    """

    def __init__(self, name: str, namespace: str, identity: str, health: Health, call_s: float) -> None:
        super().__init__(name, namespace, identity)
        self.api_instance = client.CoordinationV1Api(PatientClient(call_s))
        self._health = health
        self.looked: Callable[[], object] = lambda: None

    def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """Return (True, the lease's record), or (False, the API server's error) if it cannot be read."""
        self.looked()
        there, answer = _attempt(
            lambda: super(Lease, self).get(name, namespace), lambda error: (False, error)
        )
        if there or answer.status == _NOT_FOUND:
            self._health.clear("lease")
        else:
            why = in_words(answer)
            self._health.block("lease", f"lease {name} cannot be read: {why}")
        return there, answer

    def create(self, name: str, namespace: str, election_record: Any) -> bool:
        """Create the lease; return whether that worked."""
        create = super().create
        return bool(_attempt(lambda: create(name, namespace, election_record), lambda _: False))

    def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        """Renew or take the lease; return whether that worked."""
        update = super().update
        return bool(_attempt(lambda: update(name, namespace, updated_record), lambda _: False))


def _attempt(call: Callable[[], T], otherwise: Callable[[ApiException], T]) -> T:
    """Return the result of a call; if the API server does not answer, that of `otherwise`."""
    try:
        return call()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return otherwise(ApiException(status=0, reason=str(error)))
