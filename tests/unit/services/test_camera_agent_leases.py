"""Who pulls which camera: leases in a real Redis, and what an agent does while nothing changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from lookout.local import RedisServer
from lookout.rules.masks import Masks
from lookout.services.camera_agent import agent as agent_module
from lookout.services.camera_agent.agent import Agent, Numbers, room
from lookout.services.camera_agent.leases import UNBOUNDED, Leases, Preferences, _weight, preferred
from lookout.services.camera_agent.masking import Masking
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.camera_agent.stream import StreamReport
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import CAMERA_REPORT, to_json
from tests.changed_settings import changed_settings

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

    def __init__(self, client: redis.Redis, leases: Leases | None = None, name: str = "agent-0") -> None:
        self.client, self.table, self.now = client, FakeTable(), 0.0
        kind, fields = changed_settings(AgentSettings, mode="local", instance=name, camera_lease_s=LEASE_S)
        settings = kind(**fields)
        self.leases = leases or Leases(client, name, LEASE_S)
        numbers = Numbers.register(CollectorRegistry())
        producer: Any = None
        masking = Masking(Masks(), 1 << 20)
        self.agent = Agent(
            settings, self.table, self.leases, producer, numbers, masking=masking, clock=lambda: self.now
        )

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
    assert not world.client.exists(CAMERA_REPORT.format(camera="yard"))


def test_a_step_without_changes_reads_no_row_and_writes_no_report(world: World) -> None:
    for number in range(20):
        world.table.put(f"camera-{number}")
    world.agent.step()
    read, before = world.table.read, world.commands()
    world.agent.step()
    # The list of living agents takes six commands; each lease is renewed by a script of four.
    assert world.table.read == read
    renewing = world.commands() - before
    world.agent._streams["camera-3"].report.streaming = True
    before = world.commands()
    world.agent.step()
    assert world.client.hget(CAMERA_REPORT.format(camera="camera-3"), "state") == b"streaming"
    assert 0 < world.commands() - before - renewing <= 6, "one report was written"


def test_reports_are_written_again_before_they_end(world: World) -> None:
    world.table.put("gate")
    world.agent.step()
    world.agent._streams["gate"].report.segments = 7
    world.now += LEASE_S / 2
    world.agent.step()
    key = CAMERA_REPORT.format(camera="gate")
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


def assigned(cameras: set[str], rooms: dict[str, int]) -> dict[str, str]:
    """The agent of each camera that has one, computed at once: pairs by their hash, the highest first."""
    pairs = [(camera, agent) for camera in cameras for agent in rooms]
    pairs.sort(key=lambda pair: _weight(*pair), reverse=True)
    agents: dict[str, str] = {}
    left = dict(rooms)
    for camera, agent in pairs:
        if camera not in agents and left[agent]:
            agents[camera] = agent
            left[agent] -= 1
    return agents


@pytest.mark.parametrize("most", [3, 8, 1 << 31])
@pytest.mark.parametrize("seed", range(5))
def test_preferences_that_are_kept_up_equal_those_that_are_computed(seed: int, most: int) -> None:
    draw = random.Random(seed)
    own, names = "agent-0", [f"agent-{number}" for number in range(6)]
    preferences, cameras, rooms = Preferences(own), set[str](), dict[str, int]()
    for _ in range(60):
        match draw.randrange(3):
            case 0:
                rooms = {name: draw.randint(1, most) for name in names if draw.random() < 0.6}
                preferences.update_agents(rooms)
            case 1:
                camera = f"camera-{draw.randrange(30)}"
                cameras.add(camera)
                preferences.add(camera)
            case _:
                camera = f"camera-{draw.randrange(30)}"
                cameras.discard(camera)
                preferences.remove(camera)
        agents = assigned(cameras, rooms)
        assert preferences.own == {name for name, agent in agents.items() if agent == own}
        out = {name for name in cameras - agents.keys() if preferred(name, rooms) == own}
        assert preferences.left_out == out


def test_no_agent_takes_more_than_it_has_room_for_and_the_rest_is_reported(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "Stream", FakeStream)
    worlds = [
        World(redis_client, Leases(redis_client, f"agent-{number}", LEASE_S, 4), f"agent-{number}")
        for number in range(3)
    ]
    names = {f"camera-{number}" for number in range(14)}
    for _ in range(3):  # until every agent knows the others, and what they gave back is taken
        for world in worlds:
            for name in names:
                world.table.put(name)
            world.agent.step()
    assert [len(world.streams()) for world in worlds] == [4, 4, 4]
    pulled = set[str]().union(*(world.streams() for world in worlds))
    assert len(pulled) == 12
    for name in names:
        state = redis_client.hget(CAMERA_REPORT.format(camera=name), "state")
        assert state == (b"connecting" if name in pulled else b"no-room")
    worlds.append(World(redis_client, Leases(redis_client, "agent-3", LEASE_S, 4), "agent-3"))
    for name in names:
        worlds[3].table.put(name)
    for _ in range(3):
        for world in worlds:
            world.agent.step()
    assert set[str]().union(*(world.streams() for world in worlds)) == names
    assert all(len(world.streams()) <= 4 for world in worlds)
    assert {redis_client.hget(CAMERA_REPORT.format(camera=name), "state") for name in names} == {
        b"connecting"
    }


@pytest.mark.parametrize(
    ("text", "cameras"),
    [("1073741824\n", 43), ("max\n", UNBOUNDED), ("9223372036854771712\n", UNBOUNDED), ("1048576", 1)],
)
def test_the_room_follows_from_the_limit_of_memory(tmp_path: Path, text: str, cameras: int) -> None:
    (tmp_path / "limit").write_text(text)
    assert room([str(tmp_path / "away"), str(tmp_path / "limit")]) == cameras


def test_masked_cameras_take_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "room", lambda *, masking: 3 if masking else 10)
    world.table.put("yard")
    world.agent.step()
    assert world.leases.room == UNBOUNDED
    world.table.put("gate", mask_before_publishing=True)
    world.agent.step()
    assert world.leases.room == 3
    world.table.delete("gate")
    world.agent.step()
    assert world.leases.room == UNBOUNDED
