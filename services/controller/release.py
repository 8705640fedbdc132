"""`python -m lookout.services.controller.release`: releases the resources before the controller is
uninstalled.

Scales the controller to zero, and deletes its lease and the secrets that the chart's jobs made. Removes the
finalizer from Camera, Watch, Recording and Notification resources, since nobody else would. The resources
themselves stay.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes import client
from kubernetes.client.rest import ApiException

from lookout.errors import StartupError
from lookout.services.controller.cluster import (
    CAMERA,
    NOTIFICATION,
    RECORDING,
    WATCH,
    Kind,
    PatientClient,
    Resources,
    run_job,
)
from lookout.services.controller.rounds import is_held, let_go

_PATIENCE_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Release the resources; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--lease", default="lookout-controller")
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        help="a secret that one of the chart's jobs made; may be repeated",
    )
    options = parser.parse_args(arguments)

    def release() -> None:
        _stop(options.namespace, options.deployment)
        let_all_go(Resources(options.namespace))
        api = PatientClient()
        _delete(client.CoordinationV1Api(api).delete_namespaced_lease, options.lease, options.namespace)
        for secret in options.secret:
            _delete(client.CoreV1Api(api).delete_namespaced_secret, secret, options.namespace)

    return run_job("release", release)


def let_all_go(resources: Resources) -> None:
    """Remove the finalizer from every resource. A resource that changes meanwhile is listed and tried
    again.
    """
    for kind in (CAMERA, WATCH, RECORDING, NOTIFICATION):
        while held := [resource for resource in _all(resources, kind) if is_held(resource)]:
            for resource in held:
                let_go(resources, kind, resource)


def _all(resources: Resources, kind: Kind) -> list[dict[str, Any]]:
    """Return every resource of a kind; none if the cluster does not know the kind."""
    try:
        return resources.all(kind)
    except ApiException as error:
        if error.status != 404:
            raise
        return []


def _delete(call: Callable[[str, str], object], name: str, namespace: str) -> None:
    """Delete an object, if it exists."""
    try:
        call(name, namespace)
    except ApiException as error:
        if error.status != 404:
            raise


def _stop(namespace: str, deployment: str) -> None:
    """Scale a deployment to zero, and wait until its pods are gone.

    Raises:
        StartupError: Pods still exist after two minutes.
    """
    apps = client.AppsV1Api(PatientClient())
    deadline = time.monotonic() + _PATIENCE_S
    try:
        apps.patch_namespaced_deployment_scale(deployment, namespace, {"spec": {"replicas": 0}})
        while time.monotonic() < deadline:
            status = apps.read_namespaced_deployment(deployment, namespace).status
            if not status.replicas and not status.terminating_replicas:
                return
            time.sleep(0.5)
    except ApiException as error:
        if error.status == 404:
            return
        raise
    raise StartupError(f"{deployment} did not stop within {_PATIENCE_S:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
