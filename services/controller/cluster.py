"""The Kubernetes API as the controller uses it: resources of one namespace, watched, patched, leased."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client, config, watch as kubernetes_watch
from kubernetes.client.rest import ApiException

from lookout.observe import logs
from lookout.services.controller.settings import ControllerSettings

GROUP, VERSION = "lookout.dev", "v1"
FINALIZER = "lookout.dev/topic"
_WATCH_S = 240
_CALL_S = 15.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource and its plural in the API."""

    name: str
    plural: str


CAMERA, WATCH = Kind("Camera", "cameras"), Kind("Watch", "watches")


def connect(settings: ControllerSettings) -> None:
    """Read the credentials of the pod, or a kubeconfig outside a cluster."""
    if settings.kubeconfig is not None:
        config.load_kube_config(str(settings.kubeconfig))
    else:
        config.load_incluster_config()


class Resources:
    """Cameras and Watches of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._api = client.CustomObjectsApi()

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind."""
        listing = self._api.list_namespaced_custom_object(
            GROUP, VERSION, self._namespace, kind.plural, _request_timeout=_CALL_S
        )
        return list(listing["items"])

    def set_finalizers(self, kind: Kind, resource: Mapping[str, Any], finalizers: list[str]) -> None:
        """Replace a resource's finalizers, unless it changed meanwhile."""
        body = {
            "metadata": {
                "finalizers": finalizers,
                "resourceVersion": resource["metadata"]["resourceVersion"],
            }
        }
        self._patch(self._api.patch_namespaced_custom_object, kind, resource, body)

    def set_status(self, kind: Kind, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Merge into a resource's status."""
        body = {"status": dict(status)}
        self._patch(self._api.patch_namespaced_custom_object_status, kind, resource, body)

    def _patch(
        self, call: Callable[..., Any], kind: Kind, resource: Mapping[str, Any], body: Mapping[str, Any]
    ) -> None:
        name = resource["metadata"]["name"]
        try:
            call(
                GROUP,
                VERSION,
                self._namespace,
                kind.plural,
                name,
                body,
                _request_timeout=_CALL_S,
                _content_type="application/merge-patch+json",
            )
        except ApiException as error:
            if error.status not in (404, 409):  # it is gone, or it changed: the next round sees that
                raise

    def follow(self, kind: Kind, changed: Callable[[], None], stopped: threading.Event) -> None:
        """Call `changed` whenever a resource of the kind changes, until `stopped`. Blocks."""
        log = logs.get("cluster").bind(kind=kind.name)
        while not stopped.is_set():
            try:
                stream = kubernetes_watch.Watch().stream(
                    self._api.list_namespaced_custom_object,
                    GROUP,
                    VERSION,
                    self._namespace,
                    kind.plural,
                    timeout_seconds=_WATCH_S,
                    _request_timeout=_WATCH_S + 10,
                )
                for _ in stream:
                    changed()
                    if stopped.is_set():
                        return
            except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
                log.warning("watching resources failed and is tried again", error=str(error)[:300])
                stopped.wait(2.0)
