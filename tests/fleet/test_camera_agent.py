"""camera-agent against a real RTSP server, a real Kafka and a real Redis."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import pytest
import redis as redis_client
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from lookout.local import KafkaServer, create_topics
from lookout.services.camera_agent.leases import LEASE
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.masks_pb2 import CameraMasks, MaskVersion
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import CAMERA_REPORT, CAMERAS, MASKS, SEGMENTS, to_json
from tests.eventually import eventually
from tests.rtsp_camera import PACKAGES, BadLine, RtspCamera, have_server, repeated
from tests.rtsp_player import RtspPlayer
from tests.unit.video.segments.clips import encode
from watchbench.cameras import DEMO, camera

_PATIENCE_S = 60.0
_REPEATS = 10

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not have_server(),
        reason=f"no RTSP server here: install the Debian packages {' '.join(PACKAGES)}",
    ),
]


class Agents:
    """Agent processes over one Kafka and one Redis."""

    def __init__(self, folder: Path, kafka: str, redis_url: str) -> None:
        self.folder, self._kafka, self._redis_url = folder, kafka, redis_url
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **settings: str) -> None:
        environment = {
            "PATH": "/usr/bin:/bin",
            "LOOKOUT_MODE": "local",
            "LOOKOUT_HOST": "127.0.0.1",
            "LOOKOUT_INSTANCE": name,
            "LOOKOUT_BOOTSTRAP": self._kafka,
            "LOOKOUT_REDIS_URL": self._redis_url,
            "LOOKOUT_CONNECT_S": "3",
            **{f"LOOKOUT_{key.upper()}": value for key, value in settings.items()},
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "lookout.services.camera_agent"], env=environment, stderr=log
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered camera, repeated for minutes."""
    folder = tmp_path_factory.mktemp("film")
    return repeated(camera(DEMO[0], folder).path, folder / "long.mp4", _REPEATS)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A broker with the wire's topics, shared by this file's tests."""
    with KafkaServer() as server:
        create_topics(server.bootstrap, 2)
        yield server.bootstrap


@pytest.fixture
def agents(tmp_path: Path, broker: str, redis_url: str) -> Iterator[Agents]:
    redis_client.Redis.from_url(redis_url).flushall()
    started = Agents(tmp_path, broker, redis_url)
    yield started
    started.close()


@pytest.fixture
def rtsp(film: Path) -> Iterator[Callable[..., RtspCamera]]:
    made: list[RtspCamera] = []

    def make(*options: str) -> RtspCamera:
        made.append(RtspCamera(film, *options))
        made[-1].on()
        return made[-1]

    yield make
    for each in made:
        each.off()


def declare(broker: str, url: str, **more: object) -> str:
    """Write a camera into the table and return its id."""
    name = f"cam-{uuid.uuid4().hex[:8]}"
    message = Camera(id=name, url=url, segment_s=2, **more)  # type: ignore[arg-type]
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(CAMERAS.name, to_json(message), key=name)
    assert producer.flush(30.0) == 0
    return name


def remove(broker: str, name: str) -> None:
    """Remove a camera from the table."""
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(CAMERAS.name, None, key=name)
    assert producer.flush(30.0) == 0


def segments(broker: str, name: str, wanted: int) -> list[Message]:
    """Wait for so many segments of a camera, from the topic's beginning."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(SEGMENTS.name, each, 0) for each in range(2)])
    found: list[Message] = []
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while len(found) < wanted and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None and message.key() == name.encode():
                found.append(message)
    finally:
        consumer.close()
    assert len(found) >= wanted, f"{len(found)} of {wanted} segments of {name}"
    return found


def spans(message: Message) -> tuple[float, float, bool, int]:
    """First and last decoding time of a segment, whether it begins with a keyframe, and its pictures."""
    with av.open(io.BytesIO(message.value() or b"")) as container:
        video = container.streams.video[0]
        packets = [packet for packet in container.demux(video) if packet.dts is not None]
        times = [float(packet.dts * packet.time_base) for packet in packets]
    with av.open(io.BytesIO(message.value() or b"")) as container:
        pictures = sum(not frame.is_corrupt for frame in container.decode(video=0))
    return times[0], times[-1], packets[0].is_keyframe, pictures


@pytest.mark.parametrize(
    "transport", [Camera.TRANSPORT_TCP, pytest.param(Camera.TRANSPORT_UDP, marks=pytest.mark.long)]
)
def test_a_stream_becomes_segments_that_follow_each_other(
    agents: Agents, rtsp: Callable[..., RtspCamera], broker: str, transport: int
) -> None:
    name = declare(broker, rtsp().url, transport=transport)
    agents.start("agent-a")
    found = [spans(message) for message in segments(broker, name, 4)]
    for begin, end, keyframe, pictures in found:
        assert keyframe
        assert end - begin >= 1.5
        assert pictures >= 20
    for before, after in itertools.pairwise(found):
        assert 0 < after[0] - before[1] < 0.5, "time stamps go on from segment to segment"


@pytest.mark.long
def test_a_camera_that_reboots_is_pulled_again(
    agents: Agents, rtsp: Callable[..., RtspCamera], broker: str
) -> None:
    server = rtsp()
    name = declare(broker, server.url)
    agents.start("agent-a")
    segments(broker, name, 2)
    server.off()
    time.sleep(1.0)
    server.on()
    before = len(segments(broker, name, 2))
    found = [spans(message) for message in segments(broker, name, before + 3)]
    assert all(keyframe for _, _, keyframe, _ in found)
    assert min(begin for begin, *_ in found[1:]) < found[-1][1], "its clock began again"


@pytest.fixture
def line() -> Iterator[Callable[..., BadLine]]:
    made: list[BadLine] = []

    def make(server: RtspCamera, lost: float = 0.0) -> BadLine:
        made.append(BadLine(server, lost))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "jump_s",
    [3600.0, pytest.param(-3600.0, marks=pytest.mark.long), pytest.param(-1.5, marks=pytest.mark.long)],
)
def test_a_camera_whose_clock_jumps_goes_on(
    agents: Agents,
    rtsp: Callable[..., RtspCamera],
    line: Callable[..., BadLine],
    broker: str,
    jump_s: float,
) -> None:
    bad = line(rtsp())
    name = declare(broker, bad.url)
    agents.start("agent-a")
    before = len(segments(broker, name, 2))
    bad.jump_s = jump_s
    found = [spans(message) for message in segments(broker, name, before + 3)]
    assert bad.jumped
    for begin, end, keyframe, _ in found:
        assert keyframe
        assert 0 <= end - begin < 30, "no segment spans the jump"


@pytest.mark.long
def test_lost_packets_cost_pictures_and_nothing_else(
    agents: Agents, rtsp: Callable[..., RtspCamera], line: Callable[..., BadLine], broker: str
) -> None:
    """Every segment still begins with a keyframe, and what is published can be decoded."""
    bad = line(rtsp())
    name = declare(broker, bad.url)
    agents.start("agent-a")
    segments(broker, name, 1)
    before = len(segments(broker, name, 1))
    bad.lost = 0.05
    eventually(lambda: bad.dropped >= 3)
    found = [spans(message) for message in segments(broker, name, before + 3)]
    assert all(keyframe and pictures for _, _, keyframe, pictures in found)
    bad.lost = 0.0
    segments(broker, name, before + 5)


@pytest.mark.long
def test_a_camera_moves_when_its_agent_dies(
    agents: Agents, rtsp: Callable[..., RtspCamera], broker: str, redis_url: str
) -> None:
    cameras = [declare(broker, rtsp().url) for _ in range(4)]
    agents.start("agent-a")
    agents.start("agent-b")
    client = redis_client.Redis.from_url(redis_url, decode_responses=True)

    def holders() -> dict[str, str | None]:
        return {name: client.get(LEASE.format(camera=name)) for name in cameras}

    eventually(lambda: all(client.hget(CAMERA_REPORT.format(camera=name), "last_ms") for name in cameras))
    eventually(lambda: None not in holders().values())
    taken = holders()
    dead = taken[cameras[0]]
    assert dead is not None
    other = "agent-b" if dead == "agent-a" else "agent-a"
    agents.running[dead].kill()
    eventually(lambda: set(holders().values()) == {other})
    before = len(segments(broker, cameras[0], 1))
    segments(broker, cameras[0], before + 2)


@pytest.mark.long
def test_a_camera_that_is_removed_is_no_longer_pulled(
    agents: Agents, rtsp: Callable[..., RtspCamera], broker: str, redis_url: str
) -> None:
    name = declare(broker, rtsp().url)
    agents.start("agent-a")
    segments(broker, name, 1)
    remove(broker, name)
    client = redis_client.Redis.from_url(redis_url)
    eventually(lambda: not client.exists(LEASE.format(camera=name)))


def test_a_password_comes_from_the_secret_and_never_into_a_log(
    agents: Agents, rtsp: Callable[..., RtspCamera], broker: str, tmp_path: Path, redis_url: str
) -> None:
    server = rtsp("--user", "viewer", "--password", "p@ss/word")
    folder = tmp_path / "credentials" / "yard"
    folder.mkdir(parents=True)
    (folder / "username").write_text("viewer")
    (folder / "hosts").write_text("127.0.0.0/8 localhost")
    (folder / "password").write_text("wrong/password")
    name = declare(broker, server.url, credentials="yard")
    # This server asks for Basic alone; Digest is what tests/unit/video/sandbox/test_pull.py tries.
    agents.start("agent-a", credentials=str(tmp_path / "credentials"), basic_auth="true")
    client = redis_client.Redis.from_url(redis_url, decode_responses=True)
    error = eventually(lambda: client.hget(CAMERA_REPORT.format(camera=name), "error"))
    assert error == "the camera rejects this user name and password (401 Unauthorized)"
    (folder / "password").write_text("p@ss/word")
    segments(broker, name, 1)
    for secret in ("p@ss", "p%40ss", "wrong%2Fpassword", "wrong/password"):
        assert secret not in agents.log("agent-a") + error


def mask(broker: str, name: str, *polygons: str) -> None:
    """Write the masks of a camera, `x,y x,y x,y`."""
    zones = [
        Zone(points=[Point(x=float(x), y=float(y)) for x, y in (pair.split(",") for pair in text.split())])
        for text in polygons
    ]
    masks = CameraMasks(camera=name, versions=[MaskVersion(version=1, hide=zones)])
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(MASKS.name, to_json(masks), key=name)
    assert producer.flush(30.0) == 0


def test_nothing_unmasked_is_published_of_a_camera_that_is_masked_before(
    agents: Agents, broker: str, redis_url: str
) -> None:
    player = RtspPlayer(encode("ts", frames=50, fps=10, gop=10))
    client = redis_client.Redis.from_url(redis_url, decode_responses=True)
    try:
        name = declare(broker, player.url, mask_before_publishing=True)
        agents.start("agent-a")
        error = eventually(lambda: client.hget(CAMERA_REPORT.format(camera=name), "error"), _PATIENCE_S)
        assert "has no mask" in str(error)
        assert int(client.hget(CAMERA_REPORT.format(camera=name), "segments") or 0) == 0
        mask(broker, name, "0,0 1,0 1,1 0,1")
        published = segments(broker, name, 2)
        for message in published:
            with av.open(io.BytesIO(message.value() or b"")) as container:
                frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
            assert len(frames) >= 10
            assert all(frame.std() < 2 for frame in frames)
        eventually(lambda: client.hget(CAMERA_REPORT.format(camera=name), "error") == "", _PATIENCE_S)
    finally:
        player.close()
