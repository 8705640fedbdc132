"""Which pods are removed because their node is lost, against a fake of the API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from lookout.services.controller.lost_pods import LostPods
from tests.unit.services.controller_case import JsonHandler

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(
    name: str,
    *,
    evicted_s: float | None = 60.0,
    reason: str = "DeletionByTaintManager",
    owner: str = "StatefulSet",
) -> dict[str, Any]:
    """A pod as the API server has it; `evicted_s` None: nobody deletes it."""
    metadata: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": "prefill", "uid": "0"}],
    }
    conditions = []
    if evicted_s is not None:
        at = (NOW - timedelta(seconds=evicted_s)).isoformat().replace("+00:00", "Z")
        metadata["deletionTimestamp"] = at
        conditions = [
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at}
        ]
    spec = {"nodeName": "two", "containers": [{"name": "prefill"}]}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


class FakeApiServer(ThreadingHTTPServer):
    """A fake of the API server: pods, and what was deleted with which options."""

    daemon_threads = True

    def __init__(self, pods: list[dict[str, Any]], code: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods, self.code = pods, code
        self.asked = ""
        self.deleted: dict[str, Any] = {}


class _Handler(JsonHandler):
    server: FakeApiServer

    def do_GET(self) -> None:
        self.server.asked = self.path
        self.answer(200, {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": self.server.pods})

    def do_DELETE(self) -> None:
        self.server.deleted[self.path.rpartition("/")[2]] = self.body()
        self.answer(self.server.code, {"apiVersion": "v1", "kind": "Status"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    fake = FakeApiServer([])
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{fake.server_port}")
    monkeypatch.setattr(client.Configuration, "_default", configuration)
    yield fake
    fake.shutdown()
    fake.server_close()


def lost_pods(removed: list[Any] | None = None) -> LostPods:
    told = [] if removed is None else removed
    return LostPods("cameras", "app.kubernetes.io/instance=lookout", told.append, lambda: NOW)


def test_pods_that_a_lost_kubelet_never_ends_are_removed(server: FakeApiServer) -> None:
    server.pods = [
        pod("lost"),
        pod("lives", evicted_s=None),
        pod("ends", evicted_s=3.0),
        pod("drained", reason="EvictionByEvictionAPI"),
        pod("replaced-at-once", owner="ReplicaSet"),
    ]
    removed: list[Any] = []
    lost_pods(removed).remove()
    assert set(server.deleted) == {"lost"}
    assert [pod.metadata.name for pod in removed] == ["lost"]
    # One that came back under the name meanwhile stays.
    assert server.deleted["lost"] == {"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-lost"}}
    assert "labelSelector=app.kubernetes.io/instance%3Dlookout" in server.asked


@pytest.mark.parametrize("code", [404, 409])
def test_a_pod_that_went_meanwhile_is_no_failure(server: FakeApiServer, code: int) -> None:
    server.pods, server.code = [pod("lost")], code
    removed: list[Any] = []
    lost_pods(removed).remove()
    assert removed == []


def test_a_missing_right_is_told(server: FakeApiServer) -> None:
    server.pods, server.code = [pod("lost")], 403
    with pytest.raises(client.ApiException):
        lost_pods().remove()
