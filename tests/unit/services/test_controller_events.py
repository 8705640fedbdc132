"""Which events the controller writes, against a fake of the API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from lookout.services.controller.cluster import CAMERA, RECORDING, Kind
from lookout.services.controller.events import Events
from tests.unit.services.controller_case import JsonHandler, camera_resource

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class FakeApiServer(ThreadingHTTPServer):
    """A fake of the API server: takes an event once for each name, or refuses them with a code."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.code = 201
        self.asked = 0
        self.events: dict[str, dict[str, Any]] = {}


class _Handler(JsonHandler):
    server: FakeApiServer

    def do_POST(self) -> None:
        event = self.body()
        self.server.asked += 1
        name, code = event["metadata"]["name"], self.server.code
        if self.path != "/api/v1/namespaces/cameras/events":
            code = 404
        elif name in self.server.events:
            code = 409
        elif code == 201:
            self.server.events[name] = event
        self.answer(code, event if code == 201 else {"message": "no"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    fake = FakeApiServer()
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{fake.server_port}")
    monkeypatch.setattr(client.Configuration, "_default", configuration)
    yield fake
    fake.shutdown()
    fake.server_close()


def condition(type_: str, reason: str, message: str = "", *, met: bool = False) -> dict[str, Any]:
    return {"type": type_, "status": "True" if met else "False", "reason": reason, "message": message}


def tell(
    events: Events, *history: dict[str, Any], kind: Kind = CAMERA, name: str = "gate-3", uid: str = "1"
) -> None:
    """A resource whose one condition changes through a history."""
    resource = camera_resource()
    resource["metadata"] |= {"name": name, "uid": uid}
    for row in history:
        events.changed(kind, resource, {"conditions": [row]})
        resource = {**resource, "status": {"conditions": [row]}}


def told(server: FakeApiServer) -> list[tuple[str, str, str]]:
    return [(event["type"], event["reason"], event["message"]) for event in server.events.values()]


NO_AGENT, CONNECTING = condition("Streaming", "NoAgent"), condition("Streaming", "Connecting")
STREAMING = condition("Streaming", "Streaming", met=True)
REFUSED = condition("Streaming", "Reconnecting", "401 Unauthorized")


def test_a_fault_and_its_end_are_told_and_nothing_else(server: FakeApiServer) -> None:
    events = Events("cameras", lambda: NOW)
    tell(events, NO_AGENT, CONNECTING, STREAMING, condition("Streaming", "Paused"), STREAMING)
    assert told(server) == []
    tell(events, STREAMING, REFUSED, REFUSED, STREAMING)
    assert told(server) == [
        ("Warning", "Reconnecting", "401 Unauthorized"),
        ("Normal", "Streaming", "no longer Reconnecting"),
    ]
    (event, *_) = server.events.values()
    assert event["involvedObject"] == {
        "apiVersion": "lookout.dev/v1",
        "kind": "Camera",
        "name": "gate-3",
        "namespace": "cameras",
        "uid": "1",
    }
    assert event["source"] == {"component": "lookout-controller"}
    assert event["count"] == 1


def test_a_camera_that_streamed_and_has_no_agent_is_a_fault(server: FakeApiServer) -> None:
    tell(Events("cameras", lambda: NOW), STREAMING, {**NO_AGENT, "message": "no agent has it"}, STREAMING)
    assert told(server) == [("Warning", "NoAgent", "no agent has it")]


def test_a_job_that_was_refused_is_a_fault_and_one_that_is_done_is_none(server: FakeApiServer) -> None:
    events = Events("cameras", lambda: NOW)
    waiting = condition("Finished", "Waiting")
    tell(events, waiting, condition("Finished", "Done", met=True), kind=RECORDING)
    tell(events, waiting, condition("Finished", "Refused", "no file", met=True), kind=RECORDING, uid="2")
    assert told(server) == [("Warning", "Refused", "no file")]


def test_a_flapping_camera_is_told_once_a_minute(server: FakeApiServer) -> None:
    now = [NOW]
    events = Events("cameras", lambda: now[0])
    tell(events, *[STREAMING, REFUSED] * 3)
    assert len(server.events) == 2
    now[0] = NOW.replace(minute=5)
    tell(events, STREAMING, REFUSED)
    assert len(server.events) == 3


def test_many_faults_at_once_take_few_events(server: FakeApiServer) -> None:
    events = Events("cameras", lambda: NOW)
    for number in range(200):
        tell(events, REFUSED, uid=str(number))
    assert 10 <= server.asked < 200


def test_a_fleet_without_the_right_goes_on_and_is_not_asked_again_at_once(server: FakeApiServer) -> None:
    server.code = 403
    events = Events("cameras", lambda: NOW)
    tell(events, REFUSED, uid="1")
    tell(events, REFUSED, uid="2")
    assert (server.asked, server.events) == (1, {})


def test_an_event_of_any_resource_fits_the_api(server: FakeApiServer) -> None:
    """Names of events have 253 characters at most, messages 1,024; a name ends with no dot before its dot."""
    message = "x\x1b[2J" * 1000
    tell(
        Events("cameras", lambda: NOW),
        condition("Streaming", "Reconnecting", message),
        name=f"{'a' * 199}.{'b' * 53}",
    )
    ((name, event),) = server.events.items()
    assert len(name) <= 253
    assert ".." not in name
    assert 0 < len(event["message"]) <= 1024
    assert "\x1b" not in event["message"]


def test_a_removed_pod_is_told_with_its_node(server: FakeApiServer) -> None:
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="lookout-prefill-0", uid="7"),
        spec=client.V1PodSpec(node_name="two", containers=[]),
    )
    Events("cameras", lambda: NOW).lost_pod(pod)
    ((kind, reason, message),) = told(server)
    assert (kind, reason) == ("Warning", "NodeLost")
    assert "node two is lost" in message
