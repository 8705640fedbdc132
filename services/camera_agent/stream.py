"""Pulls one camera's RTSP stream: connects, cuts segments and reconnects, until it is stopped."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lookout.cores import usable_cores
from lookout.runtime.observe import logs
from lookout.services.camera_agent.access import allowed_hosts, check_places, is_for
from lookout.services.camera_agent.masking import MaskingError
from lookout.services.camera_agent.settings import AgentSettings
from lookout.text import public_url
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.cutter import CutSegment
from lookout.video.sandbox.places import (
    AccessError,
    has_places,
    placed,
    with_credentials,
    without_addresses,
)
from lookout.video.sandbox.pull import Pull, PullError

_FIRST_PAUSE_S = 0.5
_SEGMENT_S = 4.0
#: Starting a process takes a third of a CPU second. This limit keeps failing cameras from using more than
#: half of the cores
_STARTS = threading.BoundedSemaphore(max(1, usable_cores() // 2))


class CredentialsError(RuntimeError):
    """A camera's secret is not available; the message names it."""


@dataclass(slots=True)
class StreamReport:
    """The state of a camera: whether it is streaming, and if not, why."""

    streaming: bool = False
    error: str = ""
    segments: int = 0
    last_ms: int = 0
    dropped_packets: int = 0


class Stream:
    """Pulls one camera on its own thread until `stop`.

    Args:
        camera: What to pull and how.
        settings: Limits and pauses.
        publish: Publishes a segment, given the wall clock (ms) of its first packet. Returns False if the
            segment was dropped, because the lease is gone or the buffer is full; raises MaskingError if it
            cannot be masked.
    """

    def __init__(
        self, camera: Camera, settings: AgentSettings, publish: Callable[[CutSegment, int], bool]
    ) -> None:
        self.camera = camera
        self.report = StreamReport()
        self._settings = settings
        self._publish = publish
        self._stopped = threading.Event()
        self._current: Pull | None = None
        self._log = logs.get("stream").bind(camera=camera.id)
        self._thread = threading.Thread(target=self._run, name=f"camera-{camera.id}", daemon=True)

    def start(self) -> None:
        """Start pulling."""
        self._thread.start()

    def stop(self, patience_s: float = 0.0) -> None:
        """End the process that reads the camera, which also ends the thread. Wait up to `patience_s` seconds
        for the thread.
        """
        self._stopped.set()
        if (pull := self._current) is not None:
            pull.end()
        if patience_s:
            self._thread.join(patience_s)

    def _run(self) -> None:
        # Not a retry library, because those count attempts until one call succeeds. Here no connection lasts
        # for ever: a connection that delivered segments before it broke resets the pauses, and `stop` ends a
        # pause early.
        failures = 0
        while not self._stopped.is_set():
            before = self.report.segments
            try:
                self._pull()
            except (AccessError, CredentialsError, PullError, OSError, ValueError) as error:
                self._fail(without_addresses(str(error), public_url(self.camera.url)), first=not failures)
            except Exception:
                self._log.exception("the stream failed with an unexpected error")
                self._fail("internal error, see the agent's log")
            failures = 0 if self.report.segments > before else failures + 1
            longest = min(_FIRST_PAUSE_S * 2**failures, self._settings.reconnect_max_s)
            self._stopped.wait(random.uniform(_FIRST_PAUSE_S, max(_FIRST_PAUSE_S, longest)))

    def _fail(self, why: str, *, first: bool = False) -> None:
        self.report.streaming, self.report.error = False, why
        if self._stopped.is_set():
            return
        event = "the stream broke; reconnecting"
        if first:  # only the first of several failures in a row is shown to people
            self._log.warning(f"{event}: {why}", error=why, advice=True)
        else:
            self._log.warning(event, error=why)

    def _pull(self) -> None:
        """Run one connection until it ends."""
        connection, url = self._connect()
        with ExitStack() as parts:
            with connection, _STARTS:
                pull = Pull(connection, self._job(url))
                parts.callback(self._close, pull)
                self._current = pull
                if self._stopped.is_set():  # `stop` was called before the process started
                    return
                pull.begin()
            for segment in pull.segments():
                captured_ms = int((time.time() - segment.waited_s - segment.seconds) * 1000)
                self.report.dropped_packets = pull.dropped_packets
                try:
                    published = self._publish(segment, captured_ms)
                except MaskingError as error:
                    self._withhold(str(error))
                    continue
                if published:
                    self.report.segments += 1
                    self.report.last_ms = int(time.time() * 1000)
                self.report.streaming, self.report.error = True, ""

    def _withhold(self, why: str) -> None:
        """Report that a segment must not be published. The stream continues with the next segment."""
        if self.report.error != why:
            self._log.warning(f"a segment is withheld: {why}", error=why, advice=True)
        self.report.streaming, self.report.error = False, why

    def _close(self, pull: Pull) -> None:
        self._current = None
        pull.close()

    def _job(self, url: str) -> pb.PullJob:
        settings, camera = self._settings, self.camera
        return pb.PullJob(
            url=url,
            datagrams=camera.transport == Camera.TRANSPORT_UDP,
            connect_s=settings.connect_s,
            segment_s=camera.segment_s or _SEGMENT_S,
            segment_bytes=settings.segment_bytes,
            jump_s=settings.jump_s,
            memory_bytes=settings.stream_memory_bytes,
            basic=settings.basic_auth,
        )

    def _connect(self) -> tuple[socket.socket, str]:
        """Connect to the camera; return the connection and the camera's URL, with its credentials if it has
        any.

        Whether the camera wants the password in plain text is known only during the RTSP dialogue; the
        process that reads the stream then refuses to send it (`lookout.video.sandbox.plain_passwords`).

        Raises:
            AccessError: The credentials may not be sent to this host, or its address is outside the cameras'
                networks.
            CredentialsError: The secret is not available.
            OSError: The camera cannot be reached.
        """
        settings, camera = self._settings, self.camera
        place = placed(camera.url, settings.camera_networks)
        if not camera.credentials:
            return place.connect(settings.connect_s)
        secret = credentials(camera.credentials, settings.credentials)
        assert settings.credentials is not None
        host = urlsplit(camera.url).hostname or ""
        if not is_for(host, allowed_hosts(settings.credentials, camera.credentials)):
            raise AccessError(
                f"secret {camera.credentials!r} may not be sent to host {host!r}: add the host to the "
                f"secret's key 'hosts'"
            )
        if has_places(camera.url):
            check_places(camera.url, basic=settings.basic_auth)
        connection, url = place.connect(settings.connect_s)
        return connection, with_credentials(url, secret)


def credentials(secret: str, folder: Path | None) -> tuple[str, str]:
    """Return the user name and password from a mounted secret.

    Raises:
        CredentialsError: The secret is not mounted, or lacks `username` or `password`.
    """
    if folder is None or "/" in secret or secret.startswith("."):
        raise CredentialsError(f"secret {secret!r} is not mounted: list it in cameraAgent.credentialSecrets")
    try:
        user, password = (
            (folder / secret / key).read_text().strip("\r\n") for key in ("username", "password")
        )
    except OSError as error:
        raise CredentialsError(
            f"secret {secret!r} cannot be read ({error.strerror}): list it in cameraAgent.credentialSecrets "
            "and give it the keys username and password"
        ) from None
    return user, password
