"""Reads camera agents' reports from Redis."""

from __future__ import annotations

from collections.abc import Sequence

from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.services.gateway.settings import GatewaySettings
from lookout.text import clean
from lookout.wire import CAMERA_REPORT


def pulled(settings: GatewaySettings, cameras: Sequence[str]) -> list[tuple[str, str]]:
    """Return, for each camera, its state and why its newest connection ended; both are empty if no agent
    reports on the camera.
    """
    try:
        with settings.redis_client(
            settings.redis_url, decode_responses=True, socket_timeout=1.0, socket_connect_timeout=1.0
        ) as client:
            pipe = client.pipeline(transaction=False)
            for camera in cameras:
                pipe.hgetall(CAMERA_REPORT.format(camera=camera))
            reports = pipe.execute()
    except REDIS_ERRORS:
        return [("", "")] * len(cameras)
    return [(report.get("state", ""), clean(report.get("error", ""), 300)) for report in reports]


def why_nothing(settings: GatewaySettings, cameras: Sequence[str]) -> dict[str, str]:
    """Return the reasons that agents give for cameras that send nothing, by camera. Cameras without a reason
    are omitted.
    """
    reasons = {}
    for camera, (state, error) in zip(cameras, pulled(settings, cameras), strict=True):
        # If a camera is streaming, its error is from an earlier connection.
        words = (
            "no agent has room for the camera"
            if state == "no-room"
            else ""
            if state == "streaming"
            else error
        )
        if words:
            reasons[camera] = words
    return reasons
