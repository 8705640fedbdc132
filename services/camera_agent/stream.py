"""One camera's RTSP stream: connect, cut, reconnect, for as long as it is wanted."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import av
import av.error

from lookout.observe import logs
from lookout.services.camera_agent.access import AccessError, allowed_hosts, check_scheme, is_for, placed
from lookout.services.camera_agent.cutter import CutSegment, Cutter
from lookout.services.camera_agent.settings import AgentSettings
from lookout.v1.cameras_pb2 import Camera

_FIRST_PAUSE_S = 0.5
_SEGMENT_S = 4.0
_PORTS = {"rtsp": 554, "rtsps": 322}


class CredentialsError(RuntimeError):
    """A camera's secret is not there; the message names it."""


@dataclass(slots=True)
class StreamReport:
    """The state of a camera: whether it streams, and why not."""

    streaming: bool = False
    error: str = ""
    segments: int = 0
    last_ms: int = 0
    dropped_packets: int = 0


class Stream:
    """Pulls one camera on a thread of its own until `stop`.

    Args:
        camera: What to pull and how.
        settings: Limits and pauses.
        publish: Takes each segment with the wall clock (ms) of its first packet; returns False if the segment
            may not be published or does not fit any more.
    """

    def __init__(
        self, camera: Camera, settings: AgentSettings, publish: Callable[[CutSegment, int], bool]
    ) -> None:
        self.camera = camera
        self.report = StreamReport()
        self._settings = settings
        self._publish = publish
        self._stopped = threading.Event()
        self._log = logs.get("stream").bind(camera=camera.id)
        self._thread = threading.Thread(target=self._run, name=f"camera-{camera.id}", daemon=True)

    def start(self) -> None:
        """Begin to pull."""
        self._thread.start()

    def stop(self, patience_s: float = 0.0) -> None:
        """Stop pulling; the thread ends with its next packet or time-out."""
        self._stopped.set()
        if patience_s:
            self._thread.join(patience_s)

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            before = self.report.segments
            try:
                self._pull()
                self._fail("the camera ended the stream")
            except av.error.FFmpegError as error:
                away = unreachable(self.camera.url, self._settings.connect_s)
                self._fail(away or _without_secrets(str(error), self.camera.url))
            except (AccessError, CredentialsError, OSError, ValueError) as error:
                self._fail(_without_secrets(str(error), self.camera.url))
            except Exception:
                self._log.exception("the stream failed for no known reason")
                self._fail("internal error, see the agent's log")
            failures = 0 if self.report.segments > before else failures + 1
            longest = min(_FIRST_PAUSE_S * 2**failures, self._settings.reconnect_max_s)
            self._stopped.wait(random.uniform(_FIRST_PAUSE_S, max(_FIRST_PAUSE_S, longest)))

    def _fail(self, why: str) -> None:
        self.report.streaming, self.report.error = False, why
        if not self._stopped.is_set():
            self._log.warning("the stream broke and is opened again", error=why)

    def _pull(self) -> None:
        """One connection, from opening to its end."""
        settings, camera = self._settings, self.camera
        url = self._address()
        options = {
            "rtsp_transport": "udp" if camera.transport == Camera.TRANSPORT_UDP else "tcp",
            "protocol_whitelist": "rtsp,rtsps,rtp,tcp,udp,tls,crypto",
            "timeout": str(round(settings.connect_s * 1e6)),
        }
        with av.open(url, format="rtsp", options=options, timeout=settings.connect_s) as source:
            stream = next(iter(source.streams.video), None)
            if stream is None:
                raise ValueError("the camera sends no video")
            seconds = camera.segment_s or _SEGMENT_S
            cutter = Cutter(stream, seconds, settings.segment_bytes, settings.jump_s)
            for segment in cutter.cut(self._packets(source, stream)):
                captured_ms = int((time.time() - segment.seconds) * 1000)
                if self._publish(segment, captured_ms):
                    self.report.segments += 1
                    self.report.last_ms = int(time.time() * 1000)
                self.report.streaming, self.report.error = True, ""
                self.report.dropped_packets = cutter.dropped_packets

    def _address(self) -> str:
        """The camera's URL, with its credentials once it is known that they may go there.

        Raises:
            AccessError: They may not, or the address is outside the networks of cameras.
            CredentialsError: The secret is not there.
        """
        settings, camera = self._settings, self.camera
        url = placed(camera.url, settings.camera_networks)
        if not camera.credentials:
            return url
        with_secret = with_credentials(url, camera.credentials, settings.credentials)
        assert settings.credentials is not None
        if not settings.credentials_any_host:
            host = urlsplit(camera.url).hostname or ""
            if not is_for(host, allowed_hosts(settings.credentials, camera.credentials)):
                raise AccessError(
                    f"secret {camera.credentials!r} is not for host {host!r}: see its key hosts"
                )
        check_scheme(url, settings.connect_s, basic=settings.basic_auth)
        return with_secret

    def _packets(self, source: av.container.InputContainer, stream: av.VideoStream):  # type: ignore[no-untyped-def]
        for packet in source.demux(stream):
            if self._stopped.is_set():
                return
            yield packet


def unreachable(url: str, patience_s: float) -> str:
    """Return why a camera's address cannot be reached, or nothing if a connection opens.

    FFmpeg has one error, "Input/output error", for unknown names, silent hosts and more.
    """
    place = url
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        address = (parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 554))
        socket.create_connection(address, patience_s).close()
    except (OSError, ValueError) as error:
        return f"cannot reach {place}: {getattr(error, 'strerror', None) or error}"
    return ""


def with_credentials(url: str, secret: str, folder: Path | None) -> str:
    """Return an RTSP address with user name and password from a mounted secret.

    Raises:
        CredentialsError: The secret is not mounted, or has no such keys.
    """
    if not secret:
        return url
    if folder is None or "/" in secret or secret.startswith("."):
        raise CredentialsError(f"secret {secret!r} is not mounted: list it in cameraAgent.credentialSecrets")
    try:
        user, password = (
            (folder / secret / key).read_text().strip("\r\n") for key in ("username", "password")
        )
    except OSError as error:
        raise CredentialsError(
            f"secret {secret!r} cannot be read ({error.strerror}): list it in cameraAgent.credentialSecrets, "
            "with keys username and password"
        ) from None
    parts = urlsplit(url)
    place = f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=place))


def _without_secrets(text: str, public: str) -> str:
    """An error text in which any address is replaced by the camera's public one."""
    words = [public if "://" in word and "@" in word else word for word in text.split()]
    return " ".join(words)[:300]
