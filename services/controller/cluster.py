"""The part of the Kubernetes API that the controller uses: watching and patching resources of one
namespace.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config, watch as kubernetes_watch
from kubernetes.client.rest import ApiException

from lookout.errors import StartupError
from lookout.runtime.observe import logs
from lookout.text import clean, visible

GROUP, VERSION = "lookout.dev", "v1"
FINALIZER = "lookout.dev/topic"
_WATCH_S = 240
_CALL_S = 15.0
_PAGE = 500  # resources per page, as in kubectl
_GONE = 410  # the API server no longer has the changes since the given version


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource and its plural in the API."""

    name: str
    plural: str


CAMERA, WATCH = Kind("Camera", "cameras"), Kind("Watch", "watches")
RECORDING = Kind("Recording", "recordings")
NOTIFICATION = Kind("Notification", "notifications")
Changed = Callable[[Kind, str], object]
Written = Callable[[Kind, Mapping[str, Any], Mapping[str, Any]], object]


#: what an API call may raise; urllib3's errors mean that the API server does not answer
API_ERRORS = (ApiException, urllib3.exceptions.HTTPError, OSError)


def connect(kubeconfig: Path | None = None) -> None:
    """Read the pod's credentials, or outside a cluster a kubeconfig.

    Raises:
        StartupError: There are no credentials.
    """
    try:
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig))
        else:
            config.load_incluster_config()
    except config.ConfigException as error:
        raise StartupError(
            f"no credentials for the Kubernetes API: {error}; in a cluster, mount the token of the pod's "
            "ServiceAccount (automountServiceAccountToken); elsewhere, set KUBECONFIG to a file"
        ) from error


def in_words(error: Exception) -> str:
    """Return an API server error's message in one line; for any other error, its text."""
    if not isinstance(error, ApiException):
        return clean(error, 300)
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    return clean(f"{error.status or ''} {message}".strip(), 300)


def run_job(name: str, work: Callable[[], object]) -> int:
    """Run one of the chart's jobs; return its exit code. If the job fails, print why in one line."""
    try:
        connect()
        work()
    except (*API_ERRORS, StartupError) as error:
        sys.stderr.write(visible(f"lookout {name}: {in_words(error)}\n"))
        return 1
    return 0


class PatientClient(client.ApiClient):  # type: ignore[misc]
    """A Kubernetes client whose calls have a time limit. Without one, an unanswered call would wait for
    ever.

    Args:
        call_s: Time limit per call, in seconds. Calls are not retried.
    """

    def __init__(self, call_s: float = _CALL_S) -> None:
        configuration = client.Configuration.get_default_copy()
        configuration.retries = 0
        super().__init__(configuration)
        self._call_s = call_s

    def call_api(self, *arguments: Any, _request_timeout: Any = None, **named: Any) -> Any:
        """Make a call, with this client's time limit if the call has none."""
        return super().call_api(*arguments, _request_timeout=_request_timeout or self._call_s, **named)


class Resources:
    """Cameras, Watches, Recordings and Notifications of one namespace.

    Args:
        namespace: The resources' namespace.
        on_status: Called with the kind, the resource and the new status after a status was written.
    """

    def __init__(self, namespace: str, on_status: Written = lambda *_: None) -> None:
        self._namespace, self._on_status = namespace, on_status
        self._api = client.CustomObjectsApi()
        self._lock = threading.Lock()
        self._known: dict[Kind, dict[str, dict[str, Any]]] = {
            CAMERA: {},
            WATCH: {},
            RECORDING: {},
            NOTIFICATION: {},
        }

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind, read from the API server."""
        return self._list(kind)[0]

    def known(self, kind: Kind) -> list[dict[str, Any]]:
        """Return every resource of a kind as `follow` last saw it."""
        with self._lock:
            return list(self._known[kind].values())

    def names(self, kind: Kind) -> frozenset[str]:
        """Return the names of all resources of a kind, as `follow` last saw them."""
        with self._lock:
            return frozenset(self._known[kind])

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Return a resource as `follow` last saw it; None if it is gone."""
        with self._lock:
            return self._known[kind].get(name)

    def _list(self, kind: Kind) -> tuple[list[dict[str, Any]], str]:
        """Return every resource of a kind and the list's version, read in pages."""
        resources: list[dict[str, Any]] = []
        page: dict[str, str] = {}
        while True:
            listing = self._api.list_namespaced_custom_object(
                GROUP, VERSION, self._namespace, kind.plural, limit=_PAGE, _request_timeout=_CALL_S, **page
            )
            resources += listing["items"]
            if not (following := listing["metadata"].get("continue")):
                return resources, listing["metadata"]["resourceVersion"]
            page = {"_continue": following}

    def set_finalizers(self, kind: Kind, resource: Mapping[str, Any], finalizers: list[str]) -> bool:
        """Replace a resource's finalizers. Return False, and change nothing, if the resource was changed or
        deleted meanwhile.
        """
        body = {
            "metadata": {
                "finalizers": finalizers,
                "resourceVersion": resource["metadata"]["resourceVersion"],
            }
        }
        return self._patch(self._api.patch_namespaced_custom_object, kind, resource, body)

    def set_status(self, kind: Kind, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Merge fields into a resource's status, unless the resource was deleted meanwhile."""
        body = {"status": dict(status)}
        if self._patch(self._api.patch_namespaced_custom_object_status, kind, resource, body):
            self._on_status(kind, resource, status)

    def _patch(
        self, call: Callable[..., Any], kind: Kind, resource: Mapping[str, Any], body: Mapping[str, Any]
    ) -> bool:
        name = resource["metadata"]["name"]
        try:
            written = call(
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
            if error.status not in (404, 409):  # gone or changed; `follow` will see it
                raise
            return False
        # Store the written state at once, because the API's watch reports it only later, and until then it
        # would be written again.
        metadata = written["metadata"]
        if not (metadata.get("deletionTimestamp") and not metadata.get("finalizers")):
            self._take(kind, written)
        return True

    def follow(
        self, kind: Kind, changed: Changed, stopped: threading.Event, fault: Changed = lambda *_: None
    ) -> None:
        """Follow the resources of a kind until `stopped` is set. Blocks.

        Args:
            kind: Kind of the resources.
            changed: Called with the name of each resource that changes.
            stopped: Ends this call at the next event.
            fault: Called with the reason while the resources cannot be read, and with "" once they can.
        """
        log = logs.get("cluster").bind(kind=kind.name)
        version: str | None = None
        while not stopped.is_set():
            try:
                version = self._load(kind, changed) if version is None else version
                fault(kind, "")
                version = self._watch(kind, version, changed, stopped)
            except API_ERRORS as error:
                if isinstance(error, ApiException) and error.status == _GONE:
                    version = None
                    continue
                fault(kind, f"{kind.plural} cannot be read: {in_words(error)}")
                log.warning("watching resources failed; trying again", error=in_words(error))
                stopped.wait(2.0)

    def _load(self, kind: Kind, changed: Changed) -> str:
        """Read every resource; return the version from which to watch changes."""
        resources, version = self._list(kind)
        present = {resource["metadata"]["name"] for resource in resources}
        with self._lock:
            gone = self._known[kind].keys() - present
            for name in gone:
                del self._known[kind][name]
        for resource in resources:
            self._take(kind, resource)
        for name in present | gone:
            changed(kind, name)
        return version

    def _watch(self, kind: Kind, version: str, changed: Changed, stopped: threading.Event) -> str:
        """Follow changes for `_WATCH_S` seconds; return the version from which to continue."""
        watch = kubernetes_watch.Watch()
        stream = watch.stream(
            self._api.list_namespaced_custom_object,
            GROUP,
            VERSION,
            self._namespace,
            kind.plural,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
            _request_timeout=_WATCH_S + 10,
        )
        for event in stream:
            if stopped.is_set():
                break
            resource = event["raw_object"]
            version = resource["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            name = resource["metadata"]["name"]
            if event["type"] == "DELETED":
                with self._lock:
                    self._known[kind].pop(name, None)
                changed(kind, name)
            elif self._take(kind, resource):
                changed(kind, name)
        return version

    def _take(self, kind: Kind, resource: dict[str, Any]) -> bool:
        """Store a resource's state if it is newer; return whether more than its status changed."""
        name = resource["metadata"]["name"]
        with self._lock:
            before = self._known[kind].get(name)
            if before is not None and _version(before) > _version(resource):
                return False
            self._known[kind][name] = resource
        return before is None or _work(before) != _work(resource)


def _version(resource: Mapping[str, Any]) -> int:
    """Return a resource's version as a number. Since Kubernetes 1.35, versions of one resource may be
    compared.
    """
    return int(resource["metadata"]["resourceVersion"])


def _work(resource: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the parts of a resource that call for work, which is everything but its status."""
    metadata = resource["metadata"]
    return tuple(metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "finalizers"))
