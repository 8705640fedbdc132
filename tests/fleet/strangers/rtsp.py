"""Strange cameras: RTSP servers that a camera agent is sent to, with and without a secret."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from lookout.local import Child
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import CAMERAS, to_json
from tests import mutations
from tests.acceptor import Acceptor
from tests.fleet.strangers.tally import Tally

USER: Final = "canary-camera-user"
PASSWORD: Final = "canary-camera-password-5d1c"
SECRET: Final = "gate"
_SDP: Final = (
    b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
    b"a=rtpmap:96 H264/90000\r\na=control:track\r\n"
)
Chance = random.Random
#: what a camera answers to one request: parts with the pauses behind them, then the end of the connection
Answer = Callable[[bytes, Chance], Iterator[bytes]]


def _reply(status: str = "200 OK", body: bytes = b"", *headers: str, length: object = None) -> bytes:
    lines = [f"RTSP/1.0 {status}", "CSeq: 1", *headers]
    if body or length is not None:
        lines += [
            "Content-Type: application/sdp",
            f"Content-Length: {len(body) if length is None else length}",
        ]
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def _talk(sdp: bytes, frames: Callable[[Chance], Iterator[bytes]] | None = None) -> Answer:
    """A camera that answers in order, with this description and what it plays."""

    def answer(request: bytes, chance: Chance) -> Iterator[bytes]:
        sequence = next(
            (line for line in request.split(b"\r\n") if line.lower().startswith(b"cseq")), b"CSeq: 1"
        )
        head = b"RTSP/1.0 200 OK\r\n" + sequence + b"\r\nSession: 1\r\n"
        if request.startswith(b"DESCRIBE"):
            yield head + b"Content-Type: application/sdp\r\nContent-Length: %d\r\n\r\n" % len(sdp) + sdp
        elif request.startswith(b"OPTIONS"):
            yield head + b"Public: DESCRIBE, SETUP, PLAY\r\n\r\n"
        elif request.startswith(b"SETUP"):
            yield head + b"Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n"
        else:
            yield head + b"\r\n"
            if frames is not None and request.startswith(b"PLAY"):
                yield from frames(chance)

    return answer


def _packets(chance: Chance) -> Iterator[bytes]:
    for _ in range(200):
        body = b"\x80\x60" + chance.randbytes(chance.choice((2, 10, 1400)))
        yield b"$\x00" + len(body).to_bytes(2, "big") + body


def _endless(chance: Chance) -> Iterator[bytes]:
    for _ in range(4000):
        yield b"$\x00\xff\xff" + bytes(65535)


def _slowly(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[place : place + 1]
        time.sleep(0.2)


def _once(*parts: bytes) -> Answer:
    return lambda request, chance: iter(parts)


#: how strange cameras behave; those with a secret are asked with it
CAMERAS_BY_WAY: Final[dict[str, tuple[Answer, bool]]] = {
    "silent": (lambda request, chance: iter(()), False),
    "closes": (_once(b""), False),
    "noise": (lambda request, chance: iter((chance.randbytes(3000),)), False),
    "http": (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), False),
    "status-noise": (_once(_reply("\x1b[2J \u202e")), False),
    "head-without-end": (
        lambda request, chance: iter([b"RTSP/1.0 200 OK\r\n"] + [b"X: " + b"a" * 60_000] * 300),
        False,
    ),
    "length-of-a-gigabyte": (_once(_reply(length=1_000_000_000) + b"v=0\r\n"), False),
    "length-with-data": (
        lambda request, chance: iter([_reply(length=1_000_000_000)] + [bytes(1 << 20)] * 400),
        False,
    ),
    "length-negative": (_once(_reply(length=-1)), False),
    "length-no-number": (_once(_reply(length="9" * 400)), False),
    "byte-by-byte": (lambda request, chance: _slowly(_reply(body=_SDP)), False),
    "redirect": (_once(_reply("301 Moved", b"", "Location: rtsp://127.0.0.1:1/x")), False),
    "redirect-to-file": (_once(_reply("302 Moved", b"", "Location: file:///etc/passwd")), False),
    "redirect-to-itself": (_once(_reply("302 Moved", b"", "Location: rtsp://{here}/x")), False),
    "description-noise": (lambda request, chance: iter((_reply(body=chance.randbytes(5000)),)), False),
    "description-mutated": (
        lambda request, chance: iter((_reply(body=mutations.flipped(_SDP, Camera, chance)),)),
        False,
    ),
    "description-large": (_once(_reply(body=_SDP + b"a=x:" + b"y" * 5_000_000)), False),
    "many-tracks": (_once(_reply(body=_SDP * 5000)), False),
    "description-other-host": (
        _once(_reply(body=_SDP.replace(b"a=control:track", b"a=control:rtsp://127.0.0.1:1/track"))),
        False,
    ),
    "strange-packets": (_talk(_SDP, _packets), False),
    "endless-packets": (_talk(_SDP, _endless), False),
    "basic-for-a-secret": (_once(_reply("401 Unauthorized", b"", 'WWW-Authenticate: Basic realm="x"')), True),
    "digest-for-a-secret": (
        lambda request, chance: iter(
            (
                _reply(
                    "401 Unauthorized",
                    b"",
                    f'WWW-Authenticate: Digest realm="x", nonce="{chance.randrange(9)}"',
                ),
            )
        ),
        True,
    ),
    "digest-noise": (
        lambda request, chance: iter(
            (_reply("401 Unauthorized", b"", f"WWW-Authenticate: Digest {chance.choice(mutations.TEXTS)}"),)
        ),
        True,
    ),
    "redirect-with-a-secret": (_once(_reply("301 Moved", b"", "Location: rtsp://{here}/x")), True),
    "other-host-for-a-secret": (
        _once(_reply("401 Unauthorized", b"", 'WWW-Authenticate: Basic realm="x"', f"X: {SECRET}")),
        True,
    ),
}
#: ways whose address the secret is not for
_FOREIGN: Final = frozenset({"other-host-for-a-secret"})


class StrangeCamera:
    """One server of one behaviour; every request that it answers is an input."""

    def __init__(self, way: str, answer: Answer, seed: int, tally: Tally) -> None:
        self.kind, self._answer, self._chance, self._tally = f"rtsp {way}", answer, Chance(seed), tally
        self.received: list[bytes] = []
        self.foreign = way in _FOREIGN
        host = "127.0.0.2" if self.foreign else "127.0.0.1"
        self._acceptor = Acceptor(self._serve, host)
        self.place, self.close = self._acceptor.address, self._acceptor.close

    def _serve(self, connection: socket.socket) -> None:
        self._tally.inputs[self.kind] += 1  # a connection is one input, however much is said on it
        while request := connection.recv(65536):
            self.received.append(request)
            for part in self._answer(request, self._chance):
                connection.sendall(part.replace(b"{here}", self.place.encode()))
                if not part:
                    return


class Agent:
    """A camera agent of the fleet, and the strange cameras that it is told to pull.

    Args:
        folder: For its log and its secrets.
        settings: How it reaches the fleet's servers, as environment variables.
        options: librdkafka options of one who may write `cameras.v1`, the broker's address among them.
        tally: Of inputs.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        options: Mapping[str, Any],
        tally: Tally,
    ) -> None:
        secret = folder / "secrets" / SECRET
        secret.mkdir(parents=True)
        for name, text in (("username", USER), ("password", PASSWORD), ("hosts", "127.0.0.1")):
            (secret / name).write_text(text)
        self.cameras = [
            StrangeCamera(way, answer, seed, tally)
            for seed, (way, (answer, _)) in enumerate(CAMERAS_BY_WAY.items())
        ]
        self.log = folder / "camera-agent.log"
        own = {
            "LOOKOUT_CREDENTIALS": str(folder / "secrets"),
            "LOOKOUT_CONNECT_S": "3",
        }
        command = [sys.executable, "-m", "lookout.services.camera_agent"]
        self._child = Child(command, self.log, env={**settings, **own}, cwd=folder)
        self._tally = tally
        producer = Producer({"log_level": 0, **options})
        for (way, (_, secret_used)), server in zip(CAMERAS_BY_WAY.items(), self.cameras, strict=True):
            camera = Camera(
                id=f"strange-rtsp-{way}",
                url=f"rtsp://{server.place}/stream",
                credentials=SECRET if secret_used else "",
            )
            producer.produce(CAMERAS.name, to_json(camera), key=camera.id)
        producer.flush(30.0)

    def received(self, *, foreign: bool) -> bytes:
        """Everything that the strange cameras were sent: those that the secret is for, or those it is not."""
        cameras = [camera for camera in self.cameras if camera.foreign == foreign]
        return b"\n".join(part for camera in cameras for part in camera.received)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def close(self) -> None:
        """End it; one that ended before is a crash."""
        if not self._child.alive:
            self._tally.crashes.append(
                f"camera-agent ended with {self._child.exit_code}: {self._child.tail(5)}"
            )
        self._child.stop()
        for camera in self.cameras:
            camera.close()
