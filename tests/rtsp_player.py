"""A camera of a few lines: RTSP on loopback that plays a clip's H.264 as RTP through the connection.

It needs no packages, unlike `tests/rtsp_camera.py`, and shows what it was sent.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import av

from tests.acceptor import Acceptor

_SDP = (
    b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
    b"a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track\r\n"
)
_REALM, _NONCE = "cameras", "5f1d"
_RTCP = range(200, 205)


class RtspPlayer:
    """Plays a clip again and again, to everyone who asks, until `close`.

    Args:
        clip: MPEG-TS with H.264, from its first keyframe.
        login: User name and password that it asks for.
        schemes: How it asks, one for each challenge; the last one again and again.
        tls: Speaks RTSP over TLS.
        pause_s: Seconds between packets of the video.
        once: Plays the clip once and closes the connection.
        silent: Plays it once and keeps the connection.
        packets: RTP that it plays in place of the clip's, as it is and for as long as somebody reads.
    """

    def __init__(
        self,
        clip: bytes,
        *,
        login: tuple[str, str] | None = None,
        schemes: Sequence[str] = ("Digest",),
        tls: ssl.SSLContext | None = None,
        pause_s: float = 0.01,
        once: bool = False,
        silent: bool = False,
        packets: Callable[[], Iterator[bytes]] | None = None,
    ) -> None:
        self.bomb = packets
        self.received: list[str] = []
        self.connections = 0
        self._packets = list(rtp_packets(clip))
        self._schemes = list(schemes)
        self._login, self._tls, self._pause_s = login, tls, pause_s
        self._once, self._silent = once, silent
        self._acceptor = Acceptor(self._serve)
        self.close = self._acceptor.close
        self.url = f"{'rtsps' if tls else 'rtsp'}://{self._acceptor.address}/live"

    def _serve(self, plain: socket.socket) -> None:
        self.connections += 1
        if self._tls is not None:
            with self._tls.wrap_socket(plain, server_side=True) as connection:
                self._converse(connection)
        else:
            self._converse(plain)

    def _converse(self, connection: socket.socket) -> None:
        waiting = b""
        while data := connection.recv(65536):
            waiting += data
            while b"\r\n\r\n" in waiting:
                head, _, waiting = waiting.partition(b"\r\n\r\n")
                if not head.startswith(b"$"):
                    self._answer(connection, head.decode("latin-1"))

    def _answer(self, connection: socket.socket, request: str) -> None:
        self.received.append(request)
        method = request.split(" ", 1)[0]
        number = re.search(r"(?im)^cseq:\s*(\d+)", request)
        head = f"CSeq: {number[1] if number else 1}\r\nSession: 7\r\n"
        if method != "OPTIONS" and not self._known(method, request):
            scheme = self._schemes[0] if len(self._schemes) == 1 else self._schemes.pop(0)
            nonce = f', nonce="{_NONCE}"' if scheme == "Digest" else ""
            challenge = f'WWW-Authenticate: {scheme} realm="{_REALM}"{nonce}\r\n'
            connection.sendall(f"RTSP/1.0 401 Unauthorized\r\n{head}{challenge}\r\n".encode())
            return
        body = b""
        if method == "OPTIONS":
            head += "Public: DESCRIBE, SETUP, PLAY, GET_PARAMETER\r\n"
        elif method == "DESCRIBE":
            body = _SDP
            head += f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
        elif method == "SETUP":
            head += "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
        connection.sendall(f"RTSP/1.0 200 OK\r\n{head}\r\n".encode() + body)
        if method == "PLAY" and self.bomb is not None:
            for packet in self.bomb():
                connection.sendall(b"$\x00" + len(packet).to_bytes(2, "big") + packet)
        elif method == "PLAY":
            self._play(connection)

    def _play(self, connection: socket.socket) -> None:
        """The clip again and again; sequence numbers and time stamps go on."""
        number = stamp = 0
        while True:
            first = int.from_bytes(self._packets[0][4:8], "big")
            for packet in self._packets:
                at = stamp + int.from_bytes(packet[4:8], "big") - first
                whole = packet[:2] + number.to_bytes(2, "big") + (at % 2**32).to_bytes(4, "big") + packet[8:]
                connection.sendall(b"$\x00" + len(whole).to_bytes(2, "big") + whole)
                number = (number + 1) % 65536
                time.sleep(self._pause_s)
            if self._silent:
                return
            if self._once:
                connection.shutdown(socket.SHUT_RDWR)
                return
            stamp = at + 9000

    def _known(self, method: str, request: str) -> bool:
        if self._login is None:
            return True
        if self._schemes == ["Basic"]:
            return f"Basic {base64.b64encode(':'.join(self._login).encode()).decode()}" in request
        fields = dict(re.findall(r'(\w+)="([^"]*)"', request))
        secret = _md5(f"{self._login[0]}:{_REALM}:{self._login[1]}")
        request_mark = _md5(f"{method}:{fields.get('uri', '')}")
        expected = _md5(f"{secret}:{_NONCE}:{request_mark}")
        return fields.get("response") == expected


def rtp_packets(clip: bytes) -> Iterator[bytes]:
    """The clip's video as RTP packets (payload type 96), by FFmpeg's own writer."""
    written: list[bytes] = []

    class Sink(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            written.append(bytes(data))
            return len(data)

    with (
        av.open(io.BytesIO(clip)) as source,
        av.open(Sink(), "w", format="rtp", options={"packetsize": "1200"}) as out,
    ):
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            packet.stream = target
            packet.time_base = Fraction(1, 90_000)
            out.mux(packet)
    return (packet for packet in written if packet[1] not in _RTCP)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()
