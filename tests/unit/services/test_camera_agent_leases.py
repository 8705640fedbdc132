"""Who pulls which camera: leases in a real Redis, and what an agent does while nothing changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from lookout.local import RedisServer
from lookout.services.camera_agent import agent as agent_module
from lookout.services.camera_agent.agent import Agent, Numbers
from lookout.services.camera_agent.leases import REPORT, Leases, Preferences, preferred
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.camera_agent.stream import StreamReport
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import to_json

LEASE_S = 100.0


class FakeTable:
    """A fake of the table of cameras: rows in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.unseen: set[str] = set()
        self.read = 0

    def put(self, name: str, **fields: Any) -> None:
        self.rows[name] = to_json(Camera(id=name, **{"url": f"rtsp://127.0.0.1/{name}", **fields}))
        self.unseen.add(name)

    def delete(self, name: str) -> None:
        del self.rows[name]
        self.unseen.add(name)

    def changes(self) -> set[str]:
        unseen, self.unseen = self.unseen, set()
        return unseen

    def newest(self, key: str) -> bytes | None:
        self.read += 1
        return self.rows.get(key)


class FakeStream:
    """A fake of a stream: it reads no camera."""

    def __init__(self, camera: Camera, *_: Any) -> None:
        self.camera, self.report = camera, StreamReport()

    def start(self) -> None: ...

    def stop(self) -> None: ...


class World:
    """One agent over a table in memory and a real Redis."""

    def __init__(self, client: redis.Redis, leases: Leases | None = None) -> None:
        self.client, self.table, self.now = client, FakeTable(), 0.0
        settings = AgentSettings(mode="local", instance="agent-0", camera_lease_s=LEASE_S)
        self.leases = leases or Leases(client, "agent-0", LEASE_S)
        numbers = Numbers.register(CollectorRegistry())
        producer: Any = None
        self.agent = Agent(settings, self.table, self.leases, producer, numbers, clock=lambda: self.now)

    def commands(self) -> int:
        """Commands that Redis has run, those of this question aside."""
        stats: Any = self.client.info("commandstats")
        return sum(entry["calls"] for name, entry in stats.items() if not name.startswith("cmdstat_info"))

    def streams(self) -> set[str]:
        return set(self.agent._streams)


@pytest.fixture
def world(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(agent_module, "Stream", FakeStream)
    return World(redis_client)


def test_a_camera_is_pulled_while_it_is_in_the_table_and_not_paused(world: World) -> None:
    for name in ("gate", "yard", "door"):
        world.table.put(name)
    world.agent.step()
    assert world.streams() == {"gate", "yard", "door"}
    world.table.delete("yard")
    world.table.put("door", paused=True)
    world.table.put("gate", url="rtsp://127.0.0.1/other")
    world.agent.step()
    assert world.streams() == {"gate"}
    assert world.agent._streams["gate"].camera.url == "rtsp://127.0.0.1/other"
    assert not world.client.exists(REPORT.format(camera="yard"))


def test_a_step_without_changes_reads_no_row_and_writes_no_report(world: World) -> None:
    for number in range(20):
        world.table.put(f"camera-{number}")
    world.agent.step()
    read, before = world.table.read, world.commands()
    world.agent.step()
    # The list of living agents takes four commands; each lease is renewed by a script of four.
    assert world.table.read == read
    renewing = world.commands() - before
    world.agent._streams["camera-3"].report.streaming = True
    before = world.commands()
    world.agent.step()
    assert world.client.hget(REPORT.format(camera="camera-3"), "state") == b"streaming"
    assert 0 < world.commands() - before - renewing <= 6, "one report was written"


def test_reports_are_written_again_before_they_end(world: World) -> None:
    world.table.put("gate")
    world.agent.step()
    world.agent._streams["gate"].report.segments = 7
    world.now += LEASE_S / 2
    world.agent.step()
    key = REPORT.format(camera="gate")
    assert world.client.hget(key, "segments") == b"0"
    world.now += LEASE_S / 2
    world.agent.step()
    assert world.client.hget(key, "segments") == b"7"
    assert world.client.pttl(key) > LEASE_S * 1000


def test_a_camera_that_is_removed_while_redis_is_away_is_no_longer_pulled(
    world: World, redis_server: RedisServer
) -> None:
    for name in ("gate", "yard", "door"):
        world.table.put(name)
    world.agent.step()
    for name in ("gate", "yard"):
        world.table.delete(name)
    redis_server.kill()
    try:
        world.agent.step()
        assert world.streams() == {"door"}
    finally:
        redis_server.start()


@pytest.mark.parametrize("seed", range(5))
def test_preferences_that_are_kept_up_equal_those_that_are_computed(seed: int) -> None:
    draw = random.Random(seed)
    own, names = "agent-0", [f"agent-{number}" for number in range(6)]
    preferences, cameras, agents = Preferences(own), set[str](), set[str]()
    for _ in range(60):
        match draw.randrange(3):
            case 0:
                agents = {name for name in names if draw.random() < 0.6}
                preferences.update_agents(agents)
            case 1:
                camera = f"camera-{draw.randrange(30)}"
                cameras.add(camera)
                preferences.add(camera)
            case _:
                camera = f"camera-{draw.randrange(30)}"
                cameras.discard(camera)
                preferences.remove(camera)
        assert preferences.own == {name for name in cameras if preferred(name, agents) == own}
