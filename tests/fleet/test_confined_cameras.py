"""camera-agent with cameras of a few lines: an honest one is published whatever its neighbours do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from lookout.local import KafkaServer, create_topics
from lookout.wire import CAMERA_REPORT
from tests.eventually import eventually
from tests.fleet.strangers.rtsp import CAMERAS_BY_WAY, StrangeCamera
from tests.fleet.strangers.tally import Tally
from tests.fleet.test_camera_agent import Agents, declare, remove, segments
from tests.rtsp_player import RtspPlayer
from tests.unit.video.segments.clips import encode

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(300)]

MEMORY = 256 << 20
STRANGE = ("length-with-data", "endless-packets", "redirect-to-itself")


@pytest.fixture
def agents(tmp_path: Path, redis_url: str) -> Iterator[tuple[Agents, str]]:
    """Agents, and the broker that they publish to."""
    with KafkaServer() as server:
        create_topics(server.bootstrap, 2)
        started = Agents(tmp_path, server.bootstrap, redis_url)
        yield started, server.bootstrap
        started.close()


def test_one_bad_camera_costs_the_others_nothing(agents: tuple[Agents, str], redis_url: str) -> None:
    started, broker = agents
    player = RtspPlayer(encode("ts", frames=50, fps=10, gop=10), login=("viewer", "p@ss/word"))
    strangers = [StrangeCamera(way, CAMERAS_BY_WAY[way][0], 1, Tally()) for way in STRANGE]
    secret = started.folder / "credentials" / "yard"
    secret.mkdir(parents=True)
    for name, text in (("username", "viewer"), ("password", "p@ss/word"), ("hosts", "127.0.0.0/8")):
        (secret / name).write_text(text)
    try:
        honest = declare(broker, player.url, credentials="yard")
        bad = [declare(broker, f"rtsp://{camera.place}/live") for camera in strangers]
        started.start("agent-a", credentials=str(secret.parent), camera_networks="127.0.0.0/8")
        segments(broker, honest, 3)
        agent = psutil.Process(started.running["agent-a"].pid)
        client = redis.Redis.from_url(redis_url, decode_responses=True)
        for name in bad:
            assert eventually(lambda name=name: client.hget(CAMERA_REPORT.format(camera=name), "error"))
        assert agent.memory_info().rss < MEMORY
        assert all(child.memory_info().rss < MEMORY for child in agent.children(recursive=True))
        segments(broker, honest, 6)
        assert not client.hget(CAMERA_REPORT.format(camera=honest), "error")
        assert "p@ss" not in started.log("agent-a")
        for name in (honest, *bad):
            remove(broker, name)
        eventually(lambda: not agent.children(recursive=True))
    finally:
        player.close()
        for camera in strangers:
            camera.close()
