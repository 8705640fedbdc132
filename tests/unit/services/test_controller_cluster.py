"""What the controller knows of resources."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from kubernetes.client.rest import ApiException

from lookout.services.controller.cluster import CAMERA, FINALIZER, Kind, Resources
from lookout.services.controller.release import let_all_go
from tests.unit.services.controller_case import camera_resource


def resource(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    """A camera as the API server returns it."""
    camera = camera_resource()
    camera["metadata"] |= {"name": name, "resourceVersion": str(version), "uid": name, **metadata}
    return camera


class FakeApi:
    """A fake of the API server: lists in pages of two, and patches."""

    def __init__(self, *resources: dict[str, Any]) -> None:
        self.resources = list(resources)
        self.answer: dict[str, Any] = {}
        self.conflicts = 0

    def list_namespaced_custom_object(self, *_: Any, _continue: str = "0", **__: Any) -> dict[str, Any]:
        first = int(_continue)
        more = str(first + 2) if first + 2 < len(self.resources) else ""
        return {
            "items": copy.deepcopy(self.resources[first : first + 2]),
            "metadata": {"resourceVersion": "100", "continue": more},
        }

    def patch_namespaced_custom_object(self, *where: Any, **_: Any) -> dict[str, Any]:
        if self.conflicts:
            self.conflicts -= 1
            raise ApiException(status=409)
        name, body = where[4:]
        for known in self.resources:
            if known["metadata"]["name"] == name:
                known["metadata"]["finalizers"] = body["metadata"].get("finalizers")
        return self.answer or known

    patch_namespaced_custom_object_status = patch_namespaced_custom_object


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(*(resource(f"camera-{number}", number) for number in range(5)))


@pytest.fixture
def resources(api: FakeApi) -> Resources:
    resources: Any = Resources("cameras")
    resources._api = api
    found: Resources = resources
    return found


def test_every_page_is_read_and_what_is_gone_is_told(api: FakeApi, resources: Resources) -> None:
    told: list[str] = []

    def changed(_: Kind, name: str) -> None:
        told.append(name)

    assert resources._load(CAMERA, changed) == "100"
    names = {f"camera-{number}" for number in range(5)}
    assert (
        set(told)
        == names
        == resources.names(CAMERA)
        == {item["metadata"]["name"] for item in resources.all(CAMERA)}
    )
    told.clear()
    del api.resources[1]
    resources._load(CAMERA, changed)
    assert "camera-1" in told
    assert resources.get(CAMERA, "camera-1") is None


def test_a_status_alone_is_no_work_and_an_older_state_is_not_taken(resources: Resources) -> None:
    assert resources._take(CAMERA, resource("gate", 5))
    told = resource("gate", 7) | {"status": {"segments": 3}}
    assert not resources._take(CAMERA, told)
    assert resources.get(CAMERA, "gate") == told
    assert not resources._take(CAMERA, resource("gate", 6))
    assert resources.get(CAMERA, "gate") == told
    assert resources._take(CAMERA, resource("gate", 8, generation=2))
    assert resources._take(CAMERA, resource("gate", 9, uid="made again"))


def test_what_was_written_is_known_before_the_watch_brings_it(api: FakeApi, resources: Resources) -> None:
    before = resource("gate", 5)
    resources._take(CAMERA, before)
    api.answer = resource("gate", 6) | {"status": {"segments": 1}}
    resources.set_status(CAMERA, before, {"segments": 1})
    assert resources.get(CAMERA, "gate") == api.answer


def test_a_resource_that_loses_its_last_finalizer_does_not_come_back(
    api: FakeApi, resources: Resources
) -> None:
    """The watch may tell of the deletion before the answer to the patch is read."""
    before = resource("gate", 5, deletionTimestamp="2026-01-02T03:04:05Z", finalizers=[FINALIZER])
    api.answer = resource("gate", 6, deletionTimestamp="2026-01-02T03:04:05Z", finalizers=[])
    resources.set_finalizers(CAMERA, before, [])
    assert resources.get(CAMERA, "gate") is None


def test_resources_that_cannot_be_read_are_told_with_the_reason(
    api: FakeApi, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the definitions, or the rights, a controller would be ready and follow nothing."""
    stopped = threading.Event()
    reasons: list[str] = []
    monkeypatch.setattr(stopped, "wait", lambda _: None)
    lists = api.list_namespaced_custom_object

    def refused(*where: Any, **more: Any) -> dict[str, Any]:
        if not reasons:
            raise ApiException(status=404, reason="Not Found")
        return lists(*where, **more)

    def watched(*_: Any) -> str:
        stopped.set()
        return "101"

    monkeypatch.setattr(api, "list_namespaced_custom_object", refused)
    monkeypatch.setattr(resources, "_watch", watched)
    resources.follow(CAMERA, lambda *_: None, stopped, lambda _, why: reasons.append(why))
    assert reasons == ["cameras cannot be read: 404 Not Found", ""]


def test_before_the_controller_goes_every_finalizer_does(api: FakeApi, resources: Resources) -> None:
    """One of them changes at the very moment."""
    api.conflicts = 1
    let_all_go(resources)
    assert [item["metadata"]["finalizers"] for item in api.resources] == [[]] * 5
