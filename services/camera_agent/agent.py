"""The agent: cameras of the table that it holds leases for are pulled, and their segments published."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry, Counter, Gauge

from lookout.observe import logs
from lookout.outside_text import public_url
from lookout.services.camera_agent.cutter import CutSegment
from lookout.services.camera_agent.leases import Leases
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.camera_agent.stream import Stream
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import SEGMENTS, WireError, from_json
from lookout.wire.headers import CAPTURED_AT, encode
from lookout.worker import View


def camera_fault(key: str, value: bytes) -> str | None:
    """Why a record of cameras.v1 cannot be used; None where it can."""
    try:
        camera = from_json(value, Camera)
    except WireError as error:
        return str(error)
    return None if camera.id == key else f"its key must be its id, which is {camera.id[:40]!r}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Metrics of an agent."""

    cameras: Gauge
    segments: Counter
    lost: Counter

    @classmethod
    def register(cls, registry: CollectorRegistry) -> Numbers:
        """Make them in a registry."""
        return cls(
            Gauge("lookout_agent_cameras", "cameras that this agent pulls", registry=registry),
            Counter("lookout_agent_segments", "segments that Kafka confirmed", registry=registry),
            Counter(
                "lookout_agent_lost_segments", "segments that were not published", ("why",), registry=registry
            ),
        )


class Agent:
    """Streams by camera, kept in step with the table and the leases. `step` is called by one thread.

    Args:
        settings: Limits.
        view: The table of cameras.v1, checked by `camera_fault`.
        leases: Which cameras are this agent's.
        producer: Where segments go; its queue is bounded.
        numbers: Metrics.
    """

    def __init__(
        self,
        settings: AgentSettings,
        view: Callable[[], View],
        leases: Leases,
        producer: Producer,
        numbers: Numbers,
    ) -> None:
        self._settings = settings
        self._view = view
        self._leases = leases
        self._producer = producer
        self._numbers = numbers
        self._streams: dict[str, Stream] = {}
        self._produce = threading.Lock()
        self._log = logs.get("agent")

    def step(self) -> None:
        """Refresh the leases, start and stop streams, report their state."""
        wanted = self._cameras()
        held = self._leases.refresh(wanted)
        for name in [each for each in self._streams if each not in held]:
            self._stop(name)
        for name in held:
            running = self._streams.get(name)
            if running is not None and running.camera != wanted[name]:
                self._stop(name)
            if name not in self._streams:
                self._start(wanted[name])
        self._numbers.cameras.set(len(self._streams))
        for name, stream in self._streams.items():
            self._tell(name, stream)

    def close(self) -> None:
        """Stop every stream, hand in what is queued, give the leases back."""
        for name in list(self._streams):
            self._stop(name)
        self._producer.flush(self._settings.drain_s + 5.0)
        self._leases.leave()

    def _cameras(self) -> dict[str, Camera]:
        rows = self._view().history.values()
        cameras = [from_json(values[-1], Camera) for values in rows]
        return {camera.id: camera for camera in cameras if camera.url and not camera.paused}

    def _start(self, camera: Camera) -> None:
        stream = Stream(camera, self._settings, lambda segment, ms: self._publish(camera.id, segment, ms))
        self._streams[camera.id] = stream
        stream.start()
        self._log.info("a camera is pulled", camera=camera.id, url=public_url(camera.url))

    def _stop(self, name: str) -> None:
        self._streams.pop(name).stop()
        self._log.info("a camera is no longer pulled", camera=name)

    def _publish(self, camera: str, segment: CutSegment, captured_ms: int) -> bool:
        if not self._leases.holds(camera):
            self._numbers.lost.labels("no lease").inc()
            return False
        try:
            with self._produce:
                self._producer.produce(
                    SEGMENTS.name,
                    segment.data,
                    key=camera,
                    headers=list(encode({CAPTURED_AT: str(captured_ms)})),
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

    def _tell(self, name: str, stream: Stream) -> None:
        report = stream.report
        try:
            self._leases.tell(
                name,
                {
                    "agent": self._settings.instance,
                    "state": "streaming" if report.streaming else "connecting",
                    "error": report.error,
                    "segments": report.segments,
                    "last_ms": report.last_ms or "",
                },
            )
        except redis.RedisError:
            return
