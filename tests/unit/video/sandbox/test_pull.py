"""A camera is read by a process of its own, which reaches that camera and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from lookout.runtime.worker import load_settings
from lookout.services.camera_agent import stream
from lookout.services.camera_agent.settings import AgentSettings
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.cutter import CutSegment
from lookout.video.sandbox.places import placed, with_credentials
from lookout.video.sandbox.pull import Pull, PullError
from tests.acceptor import Acceptor
from tests.certificates import Authority
from tests.eventually import eventually
from tests.fleet.strangers.rtsp import CAMERAS_BY_WAY, StrangeCamera
from tests.fleet.strangers.tally import Tally
from tests.rtsp_player import RtspPlayer
from tests.unit.video.segments.clips import encode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")

CLIP = encode("ts", frames=50, fps=10, gop=10)
MEMORY = 256 << 20


def job(**more: object) -> pb.PullJob:
    """What every test asks: segments of two seconds."""
    defaults = {"connect_s": 10.0, "segment_s": 2.0, "segment_bytes": 15 << 20, "jump_s": 10.0}
    return pb.PullJob(**{**defaults, "memory_bytes": MEMORY, **more})


@contextmanager
def pulling(url: str, login: tuple[str, str] | None = None, **more: object) -> Iterator[Pull]:
    """A connection as the agent opens one."""
    connection, numeric = placed(url, ["127.0.0.0/8"]).connect(10.0)
    with connection:
        address = with_credentials(numeric, login) if login else numeric
        pull = Pull(connection, job(url=address, **more))
    with closing(pull):
        yield pull


def taken(pull: Pull, count: int) -> list[CutSegment]:
    """The first segments."""
    pull.begin()
    segments = pull.segments()
    return [next(segments) for _ in range(count)]


def refusal(url: str, **more: object) -> str:
    """Why a camera gives nothing."""
    with pulling(url, **more) as pull, pytest.raises(PullError) as caught:
        taken(pull, 1)
    return str(caught.value)


@pytest.fixture
def player() -> Iterator[Callable[..., RtspPlayer]]:
    """Cameras that play a clip."""
    players: list[RtspPlayer] = []

    def start(**options: object) -> RtspPlayer:
        players.append(RtspPlayer(CLIP, **options))  # type: ignore[arg-type]
        return players[-1]

    yield start
    for camera in players:
        camera.close()


@pytest.mark.slow
def test_segments_come_from_a_process_with_one_connection(player: Callable[..., RtspPlayer]) -> None:
    camera = player()
    with pulling(camera.url) as pull:
        first, second = taken(pull, 2)
        assert first.data[0] == second.data[0] == 0x47
        assert first.seconds == second.seconds == pytest.approx(1.9)
        process = psutil.Process(pull.pid)
        (link,) = process.net_connections()
        assert f"rtsp://127.0.0.1:{link.raddr.port}/live" == camera.url
        status = Path(f"/proc/{pull.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        assert "CapEff:\t0000000000000000" in status
    assert not process.is_running()


@pytest.mark.slow
def test_a_password_is_proven_and_seen_by_nobody(
    player: Callable[..., RtspPlayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKOUT_REDIS_PASSWORD", "of-another")
    camera = player(login=("viewer", "p@ss/word"))
    with pulling(camera.url, ("viewer", "p@ss/word")) as pull:
        taken(pull, 1)
        assert "p@ss" not in " ".join(psutil.Process(pull.pid).cmdline())
    assert any("Digest" in request for request in camera.received)
    assert not any("p@ss" in request or "Basic" in request for request in camera.received)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schemes",
    [["Basic"], ["Digest", "Basic"]],
    ids="-".join,
)
def test_a_password_is_not_sent_in_clear_text(player: Callable[..., RtspPlayer], schemes: list[str]) -> None:
    """A camera that asked for Digest before gets it no more than one that never did, on any connection."""
    login = ("viewer", "p@ss/word")
    camera = player(login=login, schemes=schemes)
    for _ in schemes:
        with pulling(camera.url, login) as pull, pytest.raises(PullError):
            taken(pull, 1)
    assert camera.received
    assert not any("Basic" in request for request in camera.received)


@pytest.mark.slow
def test_a_password_in_clear_text_may_be_allowed(player: Callable[..., RtspPlayer]) -> None:
    login = ("viewer", "p@ss/word")
    camera = player(login=login, schemes=["Basic"])
    with pulling(camera.url, login, basic=True) as pull:
        assert taken(pull, 1)[0].data
    assert "LOOKOUT_BASIC_AUTH" in refusal(camera.url, login=login)


@pytest.mark.slow
def test_tls(player: Callable[..., RtspPlayer], tmp_path: Path) -> None:
    files = Authority().write(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["grpc_cert_file"], files["grpc_key_file"])
    with pulling(player(tls=context).url) as pull:
        assert taken(pull, 1)[0].data


@pytest.mark.long
@pytest.mark.parametrize("way", ["length-with-data", "length-of-a-gigabyte", "description-large"])
def test_an_announced_gigabyte_costs_nobody_memory(way: str) -> None:
    camera = StrangeCamera(way, CAMERAS_BY_WAY[way][0], 1, Tally())
    try:
        before = psutil.Process().memory_info().rss
        with pulling(f"rtsp://{camera.place}/live", connect_s=1.0) as pull:
            peak = Peak(pull.pid)
            with pytest.raises(PullError):
                taken(pull, 1)
            assert 0 < peak.stop() < MEMORY
        assert psutil.Process().memory_info().rss - before < 64 << 20
    finally:
        camera.close()


def rtp(payload: bytes, number: int, stamp: int) -> bytes:
    """An RTP packet of H.264, without the mark that ends a picture (RFC 3550, RFC 6184)."""
    return b"\x80\x60" + (number % 65536).to_bytes(2, "big") + stamp.to_bytes(4, "big") + b"\0" * 4 + payload


#: payloads of H.264 over RTP that announce or gather without end, by what is wrong with them
BOMBS: dict[str, Callable[[int], bytes]] = {
    # FU-A: one fragment begins a unit, and none ends it.
    "fragments-without-end": lambda n: bytes([0x7C, 0x85 if n == 0 else 0x05]) + bytes(60_000),
    "fragments-that-all-begin": lambda n: b"\x7c\x85" + bytes(60_000),
    "fragments-without-begin": lambda n: b"\x7c\x05" + bytes(60_000),
    # STAP-A: units in one packet, with sizes of their own.
    "units-of-nothing": lambda n: b"\x78" + b"\0\0" * 30_000,
    "units-larger-than-their-packet": lambda n: b"\x78" + b"\xff\xff\x65" * 20_000,
    "one-picture-for-ever": lambda n: b"\x65" + bytes(60_000),
    "parameter-sets-for-ever": lambda n: b"\x67" + bytes([n % 256]) * 60_000,
}


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        way
        if way in ("fragments-that-all-begin", "units-larger-than-their-packet")
        else pytest.param(way, marks=pytest.mark.long)
        for way in BOMBS
    ],
)
def test_rtp_without_end_costs_its_own_process_alone(way: str) -> None:
    """Half a gigabyte of it: the process stays below its memory, what it gives is bounded, and it ends."""
    sent = 0
    count = 900 if way == "units-of-nothing" else 9000  # it takes units one by one: 27 million

    def packets() -> Iterator[bytes]:
        nonlocal sent
        for number in range(count):
            payload = BOMBS[way](number)
            sent += len(payload)
            yield rtp(payload, number, 1)

    camera = RtspPlayer(CLIP, packets=packets)
    try:
        before = psutil.Process().memory_info().rss
        with pulling(camera.url, connect_s=2.0) as pull:
            peak = Peak(pull.pid)
            pull.begin()
            sizes = []
            with pytest.raises(PullError):
                sizes += [len(segment.data) for segment in pull.segments()]
            assert 0 < peak.stop() < MEMORY + (64 << 20)  # libraries are not its own
            assert all(size <= 15 << 20 for size in sizes)
        assert psutil.Process().memory_info().rss - before < 64 << 20
    finally:
        camera.close()


class Peak:
    """The largest resident memory of a process until `stop`."""

    def __init__(self, pid: int) -> None:
        self._process, self._largest, self._stopped = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.02):
            try:
                self._largest = max(self._largest, self._process.memory_info().rss)
            except psutil.Error:
                return

    def stop(self) -> int:
        """Its bytes."""
        self._stopped.set()
        self._thread.join()
        return self._largest


@pytest.mark.parametrize("proto", ["rtsp", "rtsps"])
def test_a_redirect_reaches_nobody(proto: str) -> None:
    callers: list[bytes] = []
    other = Acceptor(lambda connection: callers.append(connection.recv(100)))

    def redirect(connection: socket.socket) -> None:
        connection.recv(4096)
        reply = f"RTSP/1.0 302 Moved\r\nCSeq: 1\r\nLocation: {proto}://{other.address}/x\r\n\r\n"
        connection.sendall(reply.encode())
        while connection.recv(4096):
            pass

    camera = Acceptor(redirect)
    try:
        # At once: FFmpeg would ask for another connection, without a pause, for as long as a camera may take.
        assert (
            refusal(f"rtsp://{camera.address}/live", connect_s=600.0)
            == "the camera redirects to another address, which is not allowed"
        )
        assert callers == []
    finally:
        camera.close()
        other.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["noise", "http", "head-without-end", "description-noise", "many-tracks", "strange-packets"]
)
def test_strange_cameras_end_their_own_connection_only(way: str) -> None:
    camera = StrangeCamera(way, CAMERAS_BY_WAY[way][0], 1, Tally())
    try:
        assert refusal(f"rtsp://{camera.place}/live", connect_s=1.0)
    finally:
        camera.close()


@pytest.mark.slow
def test_a_camera_that_falls_silent_is_named_for_it() -> None:
    def listen(connection: socket.socket) -> None:
        while connection.recv(4096):
            pass

    camera = Acceptor(listen)
    try:
        assert refusal(f"rtsp://{camera.address}/live", connect_s=1.0) == "no picture arrived for 1 s"
    finally:
        camera.close()


@pytest.mark.slow
def test_what_a_camera_sent_before_it_falls_silent_is_a_segment() -> None:
    camera = RtspPlayer(CLIP, silent=True)
    try:
        with pulling(camera.url, connect_s=3.0, segment_s=60.0) as pull:
            pull.begin()
            segments = pull.segments()
            segment = next(segments)
            assert segment.seconds == pytest.approx(4.8)  # of 50 pictures, but for the last
            assert segment.waited_s >= 3.0
            with pytest.raises(PullError, match="no picture arrived for 3 s"):
                next(segments)
    finally:
        camera.close()


def test_what_kills_the_process_is_said(player: Callable[..., RtspPlayer]) -> None:
    with pulling(player().url) as pull:
        pull.begin()
        segments = pull.segments()
        next(segments)
        os.kill(pull.pid, signal.SIGKILL)
        with pytest.raises(PullError, match="died of SIGKILL"):
            for _ in segments:
                pass


@pytest.mark.long
def test_the_process_ends_with_its_agent(player: Callable[..., RtspPlayer]) -> None:
    script = (
        "import sys, time; from tests.unit.video.sandbox.test_pull import pulling, taken\n"
        "with pulling(sys.argv[1]) as pull: taken(pull, 1); print(pull.pid, flush=True); time.sleep(600)"
    )
    agent = subprocess.Popen([sys.executable, "-c", script, player().url], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    with agent.stdout:
        process = psutil.Process(int(agent.stdout.readline()))
    agent.kill()
    agent.wait()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_cameras_start_their_processes_in_turn(
    player: Callable[..., RtspPlayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cameras that break again and again would otherwise take every core for starting processes."""
    turn = threading.BoundedSemaphore(1)
    monkeypatch.setattr(stream, "_STARTS", turn)
    camera = player()
    published: list[CutSegment] = []
    settings = load_settings(AgentSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_BOOTSTRAP": "127.0.0.1:1"})
    pulled = stream.Stream(
        Camera(id="cam", url=camera.url, segment_s=2),
        settings,
        lambda segment, captured_ms: published.append(segment) is None,
    )
    turn.acquire()  # another camera's process starts
    before = set(psutil.Process().children())
    pulled.start()
    eventually(lambda: camera.connections)
    assert set(psutil.Process().children()) <= before
    turn.release()
    eventually(lambda: published)
    assert turn.acquire(blocking=False)  # given back once it reads
    turn.release()
    pulled.stop(patience_s=30.0)
    assert set(psutil.Process().children()) <= before


def framed(reply: pb.PullReply | bytes) -> bytes:
    """A message as the pipe carries it."""
    data = reply if isinstance(reply, bytes) else reply.SerializeToString()
    return struct.pack("<I", len(data)) + data


READY = framed(pb.PullReply(ready=pb.Ready(confinement="fake")))


def segment(**fields: object) -> bytes:
    """A segment as the pipe carries it."""
    return READY + framed(pb.PullReply(segment=pb.PulledSegment(**fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "ended with code 7"),
        (READY + b"\xff\xff\xff\xff", "cannot be read"),
        (READY + framed(b"\xff" * 50), "cannot be read"),
        (READY + framed(b""), "empty reply"),
        (READY + framed(b"x" * 100)[:50], "ended with code 7"),
        (segment(data=b"x", seconds=float("nan")), "invalid segment"),
        (segment(data=b"x", seconds=-1.0), "invalid segment"),
        (segment(data=b"x", seconds=1e300), "invalid segment"),
        (segment(data=b"", seconds=1.0), "invalid segment"),
        (segment(data=b"x", seconds=1.0, waited_s=-1.0), "invalid segment"),
        (
            READY + framed(pb.PullReply(failure=pb.PullFailure(error="\x1b[2J" + "x" * 900))),
            r"^\\x1b\[2Jxxx",
        ),
    ],
)
def test_a_process_that_a_camera_took_over_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, words: str
) -> None:
    fake = tmp_path / "fake-puller"
    # It reads its job first, as the real one does: a job that nobody reads is another error.
    fake.write_text(
        f"#!{sys.executable}\nimport os, sys\nos.read(int(sys.argv[3]), 65536)\n"
        f"os.write(int(sys.argv[4]), {said!r})\nos._exit(7)\n"
    )
    fake.chmod(0o700)
    mine, theirs = socket.socketpair()
    with mine, theirs, monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(fake))
        pull = Pull(theirs, job(url="rtsp://127.0.0.1/"))
    with closing(pull), pytest.raises(PullError, match=words):
        taken(pull, 1)


ESCAPES = """
import os, socket, sys, threading
from lookout.video.sandbox.puller import Network, confine, needs_of
confine(needs=needs_of(Network(sys.argv[1]), lambda: None))
host, port = sys.argv[2].rsplit(":", 1)
def tcp(fd):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd) as link:
        link.connect((host, int(port)))
        link.sendall(b"stranger")
        link.detach()
attempts = {
    "another connection": lambda: tcp(socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()),
    "the connection, made to another one": lambda: tcp(os.dup(0)),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "listening": lambda: os.close(0) or socket.socket().listen(),
    "file": lambda: open("/etc/passwd").read(),
    "program": lambda: os.execv("/bin/true", ["true"]),
    "process": os.fork,
    "thread": threading.Thread(target=print).start,
    "whether a path exists": lambda: os.stat("/etc/passwd"),
    "its own code": lambda: os.stat(os.__file__),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, flush=True)
    except (OSError, RuntimeError):
        pass
"""


@pytest.mark.parametrize(("network", "more"), [("connection", set()), ("datagrams", {"datagrams"})])
def test_a_process_that_a_camera_took_over_reaches_that_camera_alone(network: str, more: set[str]) -> None:
    callers: list[bytes] = []
    other = Acceptor(lambda connection: callers.append(connection.recv(100)))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        done = subprocess.run(
            [sys.executable, "-c", ESCAPES, network, other.address],
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
        )
        theirs.close()
        mine.settimeout(10.0)
        got = mine.recv(100)
    other.close()
    assert done.returncode == 0, done.stderr
    # Both "connections" were the one that is there: the other server saw nobody.
    connections = {"another connection", "the connection, made to another one"}
    assert set(done.stdout.splitlines()) == connections | more
    assert got.startswith(b"stranger")
    assert callers == []
