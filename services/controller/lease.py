"""The lease that lets only one controller work, and that survives missing permissions and an API server that
does not answer.
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
    """A lock for `kubernetes.leaderelection` that survives network errors.

    The library catches only errors in the API server's answers. A refused connection would end its thread,
    after which a follower would wait for ever and a leader would continue without its lease.

    Args:
        name: The lease's name.
        namespace: The lease's namespace.
        identity: The name of the process that asks for the lease.
        health: Set to not ready while the lease cannot be read.
        call_s: Time limit per call, in seconds.

    Attributes:
        looked: Called before each read of the lease, as a sign that the thread is running.
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
        """Create the lease; return whether that succeeded."""
        create = super().create
        return bool(_attempt(lambda: create(name, namespace, election_record), lambda _: False))

    def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        """Renew or take the lease; return whether that succeeded."""
        update = super().update
        return bool(_attempt(lambda: update(name, namespace, updated_record), lambda _: False))


def _attempt(call: Callable[[], T], otherwise: Callable[[ApiException], T]) -> T:
    """Return a call's result; if the API server does not answer, return what `otherwise` makes of the
    error.
    """
    try:
        return call()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return otherwise(ApiException(status=0, reason=str(error)))
