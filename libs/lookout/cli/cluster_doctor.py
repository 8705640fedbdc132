"""The checks of a Kubernetes cluster in ``lookout doctor --kubernetes``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from lookout.runtime.fleet_checks import CheckResult, State

_OLDEST = (1, 30)
_CLOCK_S = 5.0
_CALL_S = 10.0
#: API group and resource of the objects that `helm install` of the chart creates
_CREATES = (
    ("", "services"),
    ("", "serviceaccounts"),
    ("", "secrets"),
    ("apps", "statefulsets"),
    ("apps", "deployments"),
    ("batch", "jobs"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
)
_OPTIONAL = {
    "cert-manager.io": ("cert-manager", "the chart's own job makes the gRPC certificate"),
    "keda.sh": ("KEDA", "autoscaling needs this"),
    "monitoring.coreos.com": ("Prometheus operator", "monitoring.podMonitor and monitoring.rules need this"),
}
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster and the namespace of a release."""

    namespace: str
    context: str | None = None


def findings(target: Target) -> Iterator[CheckResult]:
    """Check a cluster and yield each finding as soon as it is known; stop if the API server does not
    answer.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        yield CheckResult(
            "Kubernetes", State.BAD, "the client is missing", "pip install 'lookout-fleet[kubernetes]'"
        )
        return
    try:
        config.load_kube_config(context=target.context)
    except config.ConfigException as error:
        yield CheckResult("Kubernetes", State.BAD, str(error), "set KUBECONFIG, or name another --context")
        return
    try:
        yield _version(client)
        yield _clock(client)
        yield from _groups(client)
        yield from _rights(client, target.namespace)
        yield _security(client, target.namespace)
        yield _gpus(client)
        yield from _pods(client, target.namespace)
    except Exception as error:  # the client's errors have no common base class
        yield CheckResult("Kubernetes", State.BAD, _short(error), "is the API server reachable from here?")


def _version(client: Any) -> CheckResult:
    version = client.VersionApi().get_code(_request_timeout=_CALL_S)
    major, minor = int(version.major), int(version.minor.rstrip("+"))
    if (major, minor) >= _OLDEST:
        return CheckResult("Kubernetes", State.GOOD, str(version.git_version))
    return CheckResult("Kubernetes", State.BAD, str(version.git_version), "the chart needs 1.30 or newer")


def _clock(client: Any) -> CheckResult:
    _, _, headers = client.VersionApi().get_code_with_http_info(_request_timeout=_CALL_S)
    off = time.time() - parsedate_to_datetime(headers["Date"]).timestamp()
    if abs(off) <= _CLOCK_S:
        return CheckResult("clock", State.GOOD, "this machine and the API server agree on the time")
    return CheckResult(
        "clock",
        State.BAD,
        f"this machine is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the API server",
        "synchronise the clocks (NTP): segments carry the time at which they were captured",
    )


def _groups(client: Any) -> Iterator[CheckResult]:
    versions = client.ApisApi().get_api_versions(_request_timeout=_CALL_S)
    groups = {api_group.name for api_group in versions.groups}
    if "lookout.dev" in groups:
        yield CheckResult("custom resources", State.GOOD, "Camera and Watch")
    else:
        advice = "helm install creates them; after an upgrade, run kubectl apply -f charts/lookout/crds"
        yield CheckResult("custom resources", State.NOTE, "none", advice)
    for group, (name, meaning) in _OPTIONAL.items():
        present = group in groups
        yield CheckResult(
            name, State.GOOD if present else State.NOTE, "installed" if present else f"none: {meaning}"
        )


def _rights(client: Any, namespace: str) -> Iterator[CheckResult]:
    review = client.AuthorizationV1Api()
    missing = []
    for group, resource in _CREATES:
        attributes = client.V1ResourceAttributes(
            namespace=namespace, verb="create", group=group, resource=resource
        )
        body = client.V1SelfSubjectAccessReview(
            spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        answer = review.create_self_subject_access_review(body, _request_timeout=_CALL_S)
        if not answer.status.allowed:
            missing.append(resource)
    if missing:
        advice = f"ask for a role in namespace {namespace} that may create them"
        yield CheckResult("permissions", State.BAD, f"you may not create {', '.join(missing)}", advice)
    else:
        yield CheckResult("permissions", State.GOOD, f"you may install the chart in {namespace}")


def _security(client: Any, namespace: str) -> CheckResult:
    label = "pod-security.kubernetes.io/enforce"
    try:
        namespace_object = client.CoreV1Api().read_namespace(namespace, _request_timeout=_CALL_S)
    except client.ApiException as error:
        if error.status in (403, 404):
            why = "does not exist yet" if error.status == 404 else "cannot be read by you"
            return CheckResult("namespace", State.NOTE, f"{namespace} {why}")
        raise
    level = (namespace_object.metadata.labels or {}).get(label)
    if level == "restricted":
        return CheckResult("pod security", State.GOOD, f"{namespace} enforces restricted")
    return CheckResult(
        "pod security",
        State.NOTE,
        f"{namespace} enforces {level or 'nothing'}",
        f"kubectl label namespace {namespace} {label}=restricted (the chart complies)",
    )


def _gpus(client: Any) -> CheckResult:
    try:
        nodes = client.CoreV1Api().list_node(_request_timeout=_CALL_S).items
    except client.ApiException as error:
        if error.status == 403:
            return CheckResult("GPUs", State.NOTE, "unknown: you may not list nodes")
        raise
    devices_by_name = {
        name: sum(int((node.status.allocatable or {}).get(name, 0)) for node in nodes) for name in _GPUS
    }
    devices = ", ".join(f"{count} {name}" for name, count in devices_by_name.items() if count)
    if devices:
        return CheckResult("GPUs", State.GOOD, devices)
    return CheckResult("GPUs", State.NOTE, f"none in {len(nodes)} node(s): models run on CPUs")


def _pods(client: Any, namespace: str) -> Iterator[CheckResult]:
    """Yield a finding for every pod of the chart that is not ready, which says what the pod waits for."""
    label = "app.kubernetes.io/name=lookout"
    core = client.CoreV1Api()
    pods = core.list_namespaced_pod(namespace, label_selector=label, _request_timeout=_CALL_S).items
    running = [pod for pod in pods if pod.status.phase != "Succeeded"]
    if not running:
        yield CheckResult(
            "release", State.NOTE, f"no pods in {namespace}", "helm install lookout charts/lookout"
        )
        return
    late = [pod for pod in running if not _ready(pod)]
    lost = _lost_nodes(client) if late else {}
    for pod in late:
        node, name = pod.spec.node_name, pod.metadata.name
        if why := lost.get(node or ""):
            yield CheckResult(f"pod {name}", State.BAD, f"its node {node} is lost: {why}", _lost_advice(node))
            continue
        again = any(status.restart_count for status in pod.status.container_statuses or ())
        command = "describe pod" if not node else "logs"
        yield CheckResult(
            f"pod {name}",
            State.BAD,
            _why(pod),
            f"kubectl -n {namespace} {command} {name}{' --previous' if again else ''}",
        )
    if not late:
        yield CheckResult("release", State.GOOD, f"{len(running)} pods of {namespace} are ready")


def _lost_nodes(client: Any) -> dict[str, str]:
    """Return the nodes that are not ready, with the reason; empty if the caller may not list nodes."""
    try:
        nodes = client.CoreV1Api().list_node(_request_timeout=_CALL_S).items
    except client.ApiException as error:
        if error.status == 403:
            return {}
        raise
    return {
        node.metadata.name: condition.message or condition.reason or "it is not ready"
        for node in nodes
        for condition in node.status.conditions or ()
        if condition.type == "Ready" and condition.status != "True"
    }


def _lost_advice(node: str) -> str:
    return (
        f"if {node} does not come back: kubectl taint node {node} "
        "node.kubernetes.io/out-of-service=lost:NoExecute, and its pods start elsewhere"
    )


def _ready(pod: Any) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ()
    )


def _why(pod: Any) -> str:
    for status in pod.status.container_statuses or ():
        for state in (status.state.waiting, status.state.terminated, status.last_state.terminated):
            if state is not None and state.reason:
                return f"{state.reason}{': ' + state.message if state.message else ''}"[:300]
    reasons: list[Callable[[], str]] = [lambda: pod.status.reason or "", lambda: pod.status.phase]
    return next((text for reason in reasons if (text := reason())), "not ready")


def _short(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).splitlines()[0][:300]
