"""RTSP cameras for tests: a server process that can be switched off and on, and a bad line in front of it."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av

from lookout.local import free_ports
from tests.acceptor import Acceptor

SERVER = Path(__file__).with_name("rtsp_server.py")
#: Debian's own, which has GStreamer's bindings
SYSTEM_PYTHON = "/usr/bin/python3"
#: of Debian, for the server and Python's bindings
PACKAGES = (
    "gir1.2-gst-rtsp-server-1.0",
    "python3-gi",
    "gstreamer1.0-plugins-base",
    "gstreamer1.0-plugins-good",
    "gstreamer1.0-plugins-bad",
    "gstreamer1.0-rtsp",
)
_CHECK = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
_CLOCK = 90_000  # RTP time stamps a second
_SILENCE_S = 600.0  # a client of RTSP says little


def have_server() -> bool:
    """Return whether the RTSP server's packages are installed (`PACKAGES`)."""
    if shutil.which(SYSTEM_PYTHON) is None:
        return False
    command = [SYSTEM_PYTHON, "-c", _CHECK]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def missing_packages() -> Sequence[str]:
    """Return the Debian packages to install for the RTSP server; none where it runs."""
    return () if have_server() else PACKAGES


def repeated(source: Path, target: Path, times: int) -> Path:
    """Write a film so many times behind itself, without encoding it again; returns the target."""
    with av.open(str(target), "w") as out:
        stream = None
        offset = Fraction(0)
        for _ in range(times):
            with av.open(str(source)) as once:
                video = once.streams.video[0]
                stream = stream or out.add_stream_from_template(video)
                end = offset
                for packet in once.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    shift = round(offset / packet.time_base)
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    end = (packet.dts + packet.duration) * packet.time_base
                    packet.stream = stream
                    out.mux(packet)
                offset = end
    return target


class RtspCamera:
    """A camera that can be switched off and on again at the same address.

    Args:
        film: What it plays, once a session.
        options: More options of the server.
        address: Where it listens.
        prefix: Words in front of its command, for example of a network namespace.
        port: Its port; a free one if not given.
    """

    def __init__(
        self,
        film: Path,
        *options: str,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.port = port or free_ports(1)[0]
        self.address = address
        self._command = [*prefix, SYSTEM_PYTHON, str(SERVER), str(film), "--address", address]
        self._command += ["--port", str(self.port), *options]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"rtsp://{self.address}:{self.port}/stream"

    def on(self) -> None:
        """Start; returns once it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert int(self._process.stdout.readline()) == self.port

    def off(self) -> None:
        """Vanish without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class BadLine:
    """A line to a camera over which RTP packets are lost and its clock jumps: TCP, with RTP interleaved.

    Args:
        camera: The camera behind it.
        lost: Share of RTP packets that do not arrive.
        seed: Of the choice of lost packets.
    """

    def __init__(self, camera: RtspCamera, lost: float = 0.0, seed: int = 0) -> None:
        self._camera = camera
        self.lost = lost
        self.jump_s = 0.0
        self.dropped = 0
        self.jumped = 0
        self._chance = random.Random(seed)
        self._acceptor = Acceptor(self._serve, silence_s=_SILENCE_S)
        self.url = f"rtsp://{self._acceptor.address}/stream"
        self.close = self._acceptor.close

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection((self._camera.address, self._camera.port)) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            self._spoil(server, client)

    def _spoil(self, server: socket.socket, client: socket.socket) -> None:
        """Pass on what the camera sends: text as it is, RTP packets changed or not at all."""
        with server.makefile("rb") as source:
            while head := source.read(1):
                if head != b"$":
                    client.sendall(head + source.readline())
                    continue
                framing = source.read(3)
                channel, length = struct.unpack(">BH", framing)
                packet = source.read(length)
                if channel % 2 == 0:
                    if self._chance.random() < self.lost:
                        self.dropped += 1
                        continue
                    packet = self._shifted(packet)
                client.sendall(head + framing + packet)

    def _shifted(self, packet: bytes) -> bytes:
        if not self.jump_s:
            return packet
        self.jumped += 1
        (stamp,) = struct.unpack(">I", packet[4:8])
        stamp = (stamp + round(self.jump_s * _CLOCK)) % (1 << 32)
        return packet[:4] + struct.pack(">I", stamp) + packet[8:]


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):  # wakes the thread that reads from it
        target.shutdown(socket.SHUT_RDWR)
