"""The agent: pulls the cameras for which it holds leases, and publishes their segments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from lookout.runtime.kafka_clients import Producer
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.observe import logs
from lookout.services.camera_agent.leases import UNBOUNDED, Leases
from lookout.services.camera_agent.masking import PROCESS_BYTES, Masking, MaskingError, workers
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.camera_agent.stream import Stream
from lookout.text import public_url
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox.cutter import CutSegment
from lookout.video.sandbox.places import url_fault
from lookout.wire import SEGMENTS, WireError, check_tenant, from_json, label_headers
from lookout.wire.headers import CAPTURED_AT, encode

#: reported state of a camera that no agent has room for; services/controller/agents.py reads it
NO_ROOM: Final = "no-room"
#: memory of the agent itself and of each camera's process, in bytes (see the chart's cameraAgent.resources)
_OWN_BYTES: Final = 150 << 20
_CAMERA_BYTES: Final = 20 << 20
#: files that hold a control group's memory limit: cgroup v2, cgroup v1
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def room(limits: Sequence[str] = _LIMITS, *, masking: bool = False) -> int:
    """Return how many cameras fit into the memory limit of this process's control group: at least 1, or
    `UNBOUNDED` if there is no limit.

    Args:
        limits: Files with the limit in bytes; the first one that holds a number is used.
        masking: Whether segments are masked before they are published.
    """
    own_bytes = _OWN_BYTES + (workers() * PROCESS_BYTES if masking else 0)
    for path in limits:
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):  # the file is missing, or holds "max" (no limit)
            continue
        return max(1, min((limit - own_bytes) // _CAMERA_BYTES, UNBOUNDED))
    return UNBOUNDED


def camera_fault(key: str, value: bytes) -> str | None:
    """Return why a record of cameras.v1 cannot be used; None if it can."""
    try:
        camera = from_json(value, Camera)
    except WireError as error:
        return str(error)
    try:
        check_tenant(camera.tenant)
    except WireError as error:
        return str(error)
    if fault := url_fault(camera.url):
        return f"its url is invalid: {fault}"
    return None if camera.id == key else f"its key must be the camera's id, {camera.id[:40]!r}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The agent's metrics."""

    cameras: Gauge
    room: Gauge
    segments: Counter
    lost: Counter

    @classmethod
    def register(cls, registry: CollectorRegistry) -> Numbers:
        """Create the metrics in a registry."""
        return cls(
            Gauge("lookout_agent_cameras", "cameras that this agent pulls", registry=registry),
            Gauge("lookout_agent_room", "cameras that fit into the agent's memory", registry=registry),
            Counter("lookout_agent_segments", "segments that Kafka confirmed", registry=registry),
            Counter(
                "lookout_agent_lost_segments",
                "segments that the agent did not publish, by reason",
                ("why",),
                registry=registry,
            ),
        )


class CameraRows(Protocol):
    """The part of the table of cameras.v1 that an agent needs (`lookout.runtime.worker.tables.Table`)."""

    def changes(self) -> set[str]:
        """Return the keys whose rows have changed since the last call."""

    def newest(self, key: str) -> bytes | None:
        """Return a key's current row; None if there is none."""


class Agent:
    """Starts and stops camera streams to match the table and the leases. Only one thread may call `step`.

    The cost of a step grows with the number of changes and of this agent's cameras, not with the fleet.

    Args:
        settings: Limits.
        table: The table of cameras.v1, checked by `camera_fault`.
        leases: The leases of this agent's cameras.
        producer: Publishes segments; its queue is bounded.
        numbers: Metrics.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: AgentSettings,
        table: CameraRows,
        leases: Leases,
        producer: Producer,
        numbers: Numbers,
        *,
        masking: Masking,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._table = table
        self._clock = clock
        self._leases, self._room = leases, leases.room
        self._producer = producer
        self._numbers = numbers
        self._masking = masking
        self._wanted: dict[str, Camera] = {}
        self._streams: dict[str, Stream] = {}
        self._reported: dict[str, tuple[str, float]] = {}  # by camera: last report's state and time
        self._produce = threading.Lock()
        self._log = logs.get("agent")

    def step(self) -> None:
        """Refresh the leases, start and stop streams, and report their states."""
        self._follow_table()
        held = self._leases.refresh()
        for name in self._streams.keys() - held:
            self._stop(name)
        for name in held:
            running = self._streams.get(name)
            if running is not None and running.camera != self._wanted[name]:
                self._stop(name)
            if name not in self._streams:
                self._start(self._wanted[name])
        self._numbers.cameras.set(len(self._streams))
        self._tell()

    def close(self) -> None:
        """Stop every stream, send the queued segments, and release the leases."""
        for name in list(self._streams):
            self._stop(name)
        self._masking.close()
        self._producer.flush(self._settings.drain_s + 5.0)
        self._leases.leave()

    def _follow_table(self) -> None:
        for name in self._table.changes():
            row = self._table.newest(name)
            camera = None if row is None else from_json(row, Camera)
            if camera is None or not camera.url or camera.paused:
                self._wanted.pop(name, None)
                self._leases.remove(name)
            else:
                self._wanted[name] = camera
                self._leases.add(name)
        if any(camera.mask_before_publishing for camera in self._wanted.values()):
            self._leases.room = min(self._room, room(masking=True))
        else:
            self._leases.room = self._room
        self._numbers.room.set(self._leases.room)

    def _start(self, camera: Camera) -> None:
        stream = Stream(camera, self._settings, lambda segment, ms: self._publish(camera, segment, ms))
        self._streams[camera.id] = stream
        stream.start()
        self._log.info("started pulling a camera", camera=camera.id, url=public_url(camera.url))

    def _stop(self, name: str) -> None:
        self._streams.pop(name).stop()
        self._reported.pop(name, None)
        self._log.info("stopped pulling a camera", camera=name)

    def _publish(self, camera: Camera, segment: CutSegment, captured_ms: int) -> bool:
        data = segment.data
        if camera.mask_before_publishing:
            try:
                data = self._masking.masked(camera.id, data, captured_ms)
            except MaskingError:
                self._numbers.lost.labels("mask").inc()
                raise
        if not self._leases.holds(camera.id):
            self._numbers.lost.labels("no lease").inc()
            return False
        try:
            with self._produce:
                self._producer.produce(
                    SEGMENTS.name,
                    data,
                    key=camera.id,
                    headers=list(encode({CAPTURED_AT: str(captured_ms), **label_headers(camera)})),
                    on_delivery=self._delivered,
                )
        except BufferError:
            self._numbers.lost.labels("buffer full").inc()
            return False
        return True

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self._numbers.segments.inc()
        else:
            self._numbers.lost.labels("kafka").inc()

    def _tell(self) -> None:
        """Write the cameras' reports that are due: at once if the state changed, otherwise once per lease
        time.
        """
        now = self._clock()
        due: dict[str, str] = {}
        left_out = self._leases.left_out
        for name in self._reported.keys() - self._streams.keys() - left_out:
            del self._reported[name]
        states = {name: _state(stream) for name, stream in self._streams.items()}
        for name, state in (states | dict.fromkeys(left_out, NO_ROOM)).items():
            before, written = self._reported.get(name, ("", 0.0))
            if state != before or now - written >= self._settings.camera_lease_s:
                due[name] = state
        try:
            self._leases.tell({name: self._report(name) for name in due})
        except REDIS_ERRORS:
            return
        self._reported.update({name: (state, now) for name, state in due.items()})

    def _report(self, name: str) -> dict[str, str | int]:
        if name not in self._streams:
            return {"agent": "", "state": NO_ROOM, "error": ""}
        report = self._streams[name].report
        return {
            "agent": self._settings.instance,
            "state": "streaming" if report.streaming else "connecting",
            "error": report.error,
            "segments": report.segments,
            "last_ms": report.last_ms or "",
        }


def _state(stream: Stream) -> str:
    """Return the part of a stream's state whose changes are reported at once."""
    return "streaming" if stream.report.streaming else f"connecting {stream.report.error}"
