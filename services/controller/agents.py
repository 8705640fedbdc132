"""Reads camera agents' reports from Redis."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.worker import ServiceSettings
from lookout.services.controller.convert import NO_AGENT, NO_ROOM, Condition
from lookout.wire import CAMERA_REPORT

#: maximum number of reports per Redis pipeline
_BATCH = 250


class AgentReports:
    """The newest report that was read of each camera. While Redis is unavailable, the reports stay as they
    are.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._client = settings.redis_client(
            settings.redis_url, decode_responses=True, socket_timeout=1.0, socket_connect_timeout=1.0
        )
        self._reports: dict[str, dict[str, str]] = {}
        self._sweep: deque[str] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def next(self, cameras: Collection[str], count: int) -> list[str]:
        """Return the cameras to read next: all that were never read, and in turn `count` of the rest."""
        for name in self._reports.keys() - cameras:
            del self._reports[name]
        new = [name for name in cameras if name not in self._reports]
        turn: list[str] = []
        while self._sweep and len(turn) < count:
            if (name := self._sweep.popleft()) in self._reports:
                turn.append(name)
        if not self._sweep:
            self._sweep.extend(self._reports)
        return new + turn

    def read(self, cameras: Sequence[str]) -> tuple[list[str], list[str]]:
        """Read cameras' reports.

        Returns:
            The cameras whose agent, state or error changed, and the cameras of whose report only numbers
            changed.
        """
        states, numbers = [], []
        for start in range(0, len(cameras), _BATCH):
            batch = cameras[start : start + _BATCH]
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    for name in batch:
                        pipeline.hgetall(CAMERA_REPORT.format(camera=name))
                    reports = pipeline.execute()
            except REDIS_ERRORS:
                break
            for name, report in zip(batch, reports, strict=True):
                before = self._reports.get(name)
                self._reports[name] = report
                if before is None or _state(before) != _state(report):
                    states.append(name)
                elif before != report:
                    numbers.append(name)
        return states, numbers

    def status(self, camera: str) -> dict[str, Any]:
        """Return the parts of a Camera's status that its agent reports; empty if no report could be read."""
        report = self._reports.get(camera)
        if report is None:
            return {}
        if not report:
            return {"agent": "", "streaming": NO_AGENT}
        status: dict[str, Any] = {
            "agent": report.get("agent", ""),
            "segments": int(report.get("segments", 0)),
            "streaming": streaming(report),
        }
        if last := report.get("last_ms"):
            moment = datetime.fromtimestamp(int(last) / 1000, UTC)
            status["lastSegment"] = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
        return status


def _state(report: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(report.get(name) for name in ("agent", "state", "error"))


def streaming(report: Mapping[str, str]) -> Condition:
    """Return the condition `Streaming` of a camera that an agent pulls."""
    if report.get("state") == "streaming":
        return Condition("Streaming", True, "Streaming")
    if report.get("state") == "no-room":  # services/camera_agent/agent.py
        return NO_ROOM
    if error := report.get("error"):
        return Condition("Streaming", False, "Reconnecting", error)
    return Condition("Streaming", False, "Connecting", "the camera's agent is opening the stream")
