"""What `lookout doctor --kubernetes` says of pods, against a fake of Kubernetes' client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lookout.cli.cluster_doctor import _pods
from lookout.runtime.fleet_checks import State


class ForbiddenError(Exception):
    """A fake of the client's error."""

    status = 403


def fake_client(pods: list[Any], nodes: list[Any] | None) -> Any:
    """A fake: pods of a namespace, and nodes; None: the caller may not list them."""

    def list_node(**_: Any) -> Any:
        if nodes is None:
            raise ForbiddenError
        return SimpleNamespace(items=nodes)

    core = SimpleNamespace(
        list_node=list_node, list_namespaced_pod=lambda *_, **__: SimpleNamespace(items=pods)
    )
    return SimpleNamespace(CoreV1Api=lambda: core, ApiException=ForbiddenError)


def condition(status: str, message: str = "") -> Any:
    return SimpleNamespace(type="Ready", status=status, reason="NodeStatusUnknown", message=message)


def node(name: str, status: str = "True", message: str = "") -> Any:
    conditions = [condition(status, message)]
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=SimpleNamespace(conditions=conditions))


def pod(name: str, node_name: str | None, restarts: int = 0) -> Any:
    state = SimpleNamespace(waiting=None, terminated=None)
    container = SimpleNamespace(restart_count=restarts, state=state, last_state=state)
    status = SimpleNamespace(
        phase="Running", reason=None, conditions=[condition("False")], container_statuses=[container]
    )
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name), spec=SimpleNamespace(node_name=node_name), status=status
    )


def test_a_pod_of_a_lost_node_names_the_node() -> None:
    client = fake_client(
        [pod("prefill-0", "two")],
        [node("one"), node("two", "Unknown", "Kubelet stopped posting node status.")],
    )
    (found,) = _pods(client, "cameras")
    assert (found.state, found.about) == (State.BAD, "pod prefill-0")
    assert found.found == "its node two is lost: Kubelet stopped posting node status."
    assert "kubectl taint node two node.kubernetes.io/out-of-service" in found.advice


def test_logs_of_a_pod_that_never_restarted_are_not_its_previous_ones() -> None:
    client = fake_client([pod("prefill-0", "one"), pod("decode-0", "one", 3), pod("alerts-0", None)], None)
    advice = [found.advice for found in _pods(client, "cameras")]
    assert advice == [
        "kubectl -n cameras logs prefill-0",
        "kubectl -n cameras logs decode-0 --previous",
        "kubectl -n cameras describe pod alerts-0",
    ]
