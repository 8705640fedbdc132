"""What camera agents say of their cameras, read from the directory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lookout.net.redis_errors import REDIS_ERRORS
from lookout.services.controller.convert import Condition
from lookout.wire import REDIS_KEYS
from lookout.worker import ServiceSettings

#: one hash a camera, which its agent writes; also the name of its lease (services/camera_agent)
REPORT = REDIS_KEYS + "{{{camera}}}:report"


class AgentReports:
    """Reads the report of each camera; a Redis that is away gives none."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._client = settings.redis_client(
            settings.redis_url, decode_responses=True, socket_timeout=1.0, socket_connect_timeout=1.0
        )

    def status(self, camera: str) -> dict[str, Any]:
        """Return the parts of a Camera's status that its agent knows."""
        report: dict[str, str] = {}
        with contextlib.suppress(*REDIS_ERRORS):
            entries = self._client.hgetall(REPORT.format(camera=camera))
            report = {str(name): str(value) for name, value in entries.items()}
        if not report:
            return {"agent": ""}
        status: dict[str, Any] = {
            "agent": report.get("agent", ""),
            "segments": int(report.get("segments", 0)),
            "streaming": streaming(report),
        }
        if last := report.get("last_ms"):
            moment = datetime.fromtimestamp(int(last) / 1000, UTC)
            status["lastSegment"] = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
        return status


def streaming(report: Mapping[str, str]) -> Condition:
    """Return the condition `Streaming` of a camera that an agent has."""
    if report.get("state") == "streaming":
        return Condition("Streaming", True, "Streaming")
    if error := report.get("error"):
        return Condition("Streaming", False, "Reconnecting", error)
    return Condition("Streaming", False, "Connecting", "its agent opens the stream")
