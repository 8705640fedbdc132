"""Whether services of this machine are ready, and what `lookout doctor` says of them, past a proxy."""

from __future__ import annotations

import os

import pytest

from lookout.cli import doctor
from lookout.local import FleetAddress
from lookout.local.readiness import ask_ready
from lookout.runtime.fleet_checks import State
from lookout.runtime.net import GrpcServer
from lookout.runtime.observe import Health, Metrics, Probes


@pytest.fixture(autouse=True)
def _proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that does not answer."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def test_a_service_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readiness over HTTP, its calls over gRPC: doctor tells both."""
    health = Health()
    probes, server = Probes(Metrics("decode"), health, 0, "127.0.0.1"), GrpcServer("127.0.0.1", 0)
    fleet = FleetAddress(
        "127.0.0.1:9092", "", "/fleet", os.getpid(), {"decode": probes.port}, {"decode": server.port}
    )
    monkeypatch.setattr(doctor, "running_fleets", lambda: [fleet])

    def states() -> dict[str, State]:
        return {finding.about: finding.state for finding in doctor._services()}

    probes.start()
    server.start()
    try:
        assert "starting" in (ask_ready(probes.port, 20.0) or "")
        assert states()["service decode"] is states()["calls of decode"] is State.BAD
        health.clear("worker")
        server.serving(True)
        assert ask_ready(probes.port, 20.0) is None
        assert states()["service decode"] is states()["calls of decode"] is State.GOOD
    finally:
        server.stop(0.1)
        probes.stop()
    assert states()["service decode"] is states()["calls of decode"] is State.BAD
