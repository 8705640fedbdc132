"""What a camera's status says of its stream, from its agent's report."""

from __future__ import annotations

import pytest
import redis

from lookout.local import RedisServer
from lookout.runtime.worker import ServiceSettings
from lookout.services.controller.agents import AgentReports, streaming
from lookout.services.controller.convert import NO_AGENT, Condition
from lookout.wire import CAMERA_REPORT


@pytest.mark.parametrize(
    ("report", "condition"),
    [
        ({"state": "streaming", "error": ""}, Condition("Streaming", True, "Streaming")),
        (
            {"state": "connecting", "error": "[Errno 111] Connection refused"},
            Condition("Streaming", False, "Reconnecting", "[Errno 111] Connection refused"),
        ),
    ],
)
def test_a_stream_runs_or_says_what_broke_it(report: dict[str, str], condition: Condition) -> None:
    assert streaming(report) == condition


def test_a_stream_that_has_not_been_tried_yet_does_not_claim_to_be_opened_again() -> None:
    found = streaming({"state": "connecting", "error": ""})
    assert (found.status, found.reason) == (False, "Connecting")
    assert found.message


def test_a_camera_that_no_agent_has_room_for_says_what_to_do() -> None:
    found = streaming({"agent": "", "state": "no-room", "error": ""})
    assert (found.status, found.reason) == (False, "NoRoom")
    assert "cameraAgent.replicas" in found.message


def test_reports_are_read_in_turn_and_what_changed_is_told(redis_server: RedisServer) -> None:
    names = {f"camera-{number}" for number in range(10)}
    with (
        AgentReports(ServiceSettings(mode="local", redis_url=redis_server.url)) as reports,
        redis.Redis.from_url(redis_server.url) as client,
    ):

        def write(name: str, **fields: str) -> None:
            client.hset(CAMERA_REPORT.format(camera=name), mapping={"agent": "agent-0", **fields})

        assert set(reports.next(names, 3)) == names, "cameras that are new are read at once"
        states, numbers = reports.read(sorted(names))
        assert (set(states), numbers) == (names, [])
        assert reports.status("camera-1")["streaming"] == NO_AGENT
        turns = [reports.next(names, 5) for _ in range(3)]
        assert set(turns[0]) | set(turns[1]) | set(turns[2]) == names
        write("camera-1", state="streaming", segments="1")
        write("camera-2", state="connecting", error="refused")
        assert reports.read(sorted(names)) == (["camera-1", "camera-2"], [])
        write("camera-1", segments="2")
        assert reports.read(sorted(names)) == ([], ["camera-1"])
        assert reports.status("camera-1")["segments"] == 2
        assert reports.next({"camera-1"}, 5) in (["camera-1"], [])
        assert reports.status("camera-2") == {}, "it is gone"


def test_without_redis_the_reports_stay_what_they_were(redis_server: RedisServer) -> None:
    with AgentReports(ServiceSettings(mode="local", redis_url=redis_server.url)) as reports:
        with redis.Redis.from_url(redis_server.url) as client:
            client.hset(
                CAMERA_REPORT.format(camera="gate"), mapping={"agent": "agent-0", "state": "streaming"}
            )
        reports.read(["gate"])
        redis_server.kill()
        try:
            assert reports.read(["gate", "yard"]) == ([], [])
            assert reports.status("gate")["agent"] == "agent-0"
            assert reports.status("yard") == {}
        finally:
            redis_server.start()
