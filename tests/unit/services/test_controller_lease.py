"""The leader's lease while the API server is away, refuses, or never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client
from kubernetes.leaderelection import electionconfig, leaderelection

from lookout.errors import StartupError
from lookout.runtime.observe import Health
from lookout.services.controller import credential
from lookout.services.controller.cluster import connect
from lookout.services.controller.lease import Lease
from tests.eventually import eventually
from tests.unit.services.controller_case import JsonHandler


class FakeApiServer(ThreadingHTTPServer):
    """A fake of the API server: one lease, which it keeps, refuses to show, or hangs up on."""

    daemon_threads = True
    lease: dict[str, Any] | None = None
    mood = "well"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(JsonHandler):
    server: FakeApiServer

    def do_GET(self) -> None:
        if self.server.lease is None:
            self.answer(404, {"code": 404, "message": "leases is not found"})
        else:
            self.answer(200, self.server.lease)

    def do_POST(self) -> None:
        self.server.lease = body = self.body()
        self.answer(200, body)

    def do_PUT(self) -> None:
        self.do_POST()

    def answer(self, code: int, body: Any) -> None:
        if self.server.mood == "gone":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.server.mood == "forbids":
            code, body = 403, {"code": 403, "message": "leases is forbidden"}
        super().answer(code, body)


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.server_port}"
        before = client.Configuration._default
        client.Configuration.set_default(configuration)
        yield server
        client.Configuration.set_default(before)
        server.shutdown()


class Election:
    """One that asks for the lease, as the controller does, and what came of it."""

    def __init__(self) -> None:
        self.health = Health(stall_s=1e9)
        self.health.clear("worker")
        self.led, self.replaced, self.ended = threading.Event(), threading.Event(), threading.Event()
        settings = electionconfig.Config(
            Lease("lookout-controller", "cameras", "one", self.health, 1.0),
            lease_duration=3,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=self._lead,
            onstopped_leading=self.replaced.set,
        )
        threading.Thread(target=leaderelection.LeaderElection(settings).run, daemon=True).start()

    def _lead(self) -> None:
        self.led.set()
        self.ended.wait()

    @property
    def reason(self) -> str:
        """Why it is not ready."""
        return self.health.blockers().get("lease", "")


def test_who_waits_for_the_lease_leads_once_the_api_server_is_back(server: FakeApiServer) -> None:
    server.mood = "gone"
    election = Election()
    eventually(lambda: "lease lookout-controller cannot be read" in election.reason)
    server.mood = "well"
    assert election.led.wait(10.0)
    assert election.reason == ""
    election.ended.set()


def test_a_leader_that_cannot_renew_its_lease_is_told(server: FakeApiServer) -> None:
    election = Election()
    assert election.led.wait(10.0)
    server.mood = "gone"
    assert election.replaced.wait(10.0)
    election.ended.set()


def test_who_may_not_read_the_lease_is_not_ready(server: FakeApiServer) -> None:
    server.mood = "forbids"
    election = Election()
    eventually(lambda: "cannot be read: 403" in election.reason)
    server.mood = "well"
    eventually(lambda: election.reason == "")
    election.ended.set()


@pytest.mark.parametrize("mood", ["well", "gone", "forbids"])
def test_every_look_at_the_lease_is_a_sign_of_life(server: FakeApiServer, mood: str) -> None:
    server.mood = mood
    looks: list[None] = []
    lease = Lease("lookout-controller", "cameras", "one", Health(), 5.0)
    lease.looked = lambda: looks.append(None)
    lease.get("lookout-controller", "cameras")
    assert len(looks) == 1


def test_a_pod_without_a_token_says_so() -> None:
    with pytest.raises(StartupError, match="no credentials for the Kubernetes API"):
        connect()


def test_a_job_says_in_a_line_what_the_api_server_refused(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lookout.services.controller.cluster.connect", lambda: None)
    server.mood = "forbids"
    options = ["--namespace=cameras", "--secret=grpc", "--dns-name=fleet.internal", "--days=90"]
    assert credential.main(options) == 1
    assert capsys.readouterr().err == "lookout credential: 403 leases is forbidden\n"
