"""Converts a camera's health to and from its checkpoint."""

from __future__ import annotations

from typing import Final

import numpy as np

from lookout.v1 import state_pb2
from lookout.video.health import (
    CELLS,
    HOUR_BYTES,
    NUMBERS,
    CameraFault,
    CameraHealth,
    CameraIncident,
    Levels,
    ReferencePicture,
    Usual,
)

_PLANE: Final = (CELLS, CELLS)
_HOURS: Final = (24, HOUR_BYTES)


def pack(health: CameraHealth) -> state_pb2.CameraHealth:
    """Convert a camera's health for its checkpoint."""
    message = state_pb2.CameraHealth(
        pictures=[
            state_pb2.HealthPicture(
                luma=picture.luma.tobytes(), detail=picture.detail.tobytes(), seconds=picture.seconds
            )
            for picture in health.usual.pictures
        ],
        hours=health.usual.hours.tobytes(),
        hour=health.usual.hour,
        similarity=health.levels.similarity,
        kept=health.levels.detail,
        lost=health.levels.lost,
        seen_s=health.seen_s,
        checksum=health.checksum,
        same_s=health.same_s,
        same_keys=health.same_keys,
        still_s=health.still_s,
        quiet_s=health.quiet_s,
        history=health.history.tobytes(),
        fps=health.fps,
        rate=health.rate,
        jumps=health.jumps,
        held_s=health.fault_s,
        clear_s=health.clear_s,
        blank_s=health.blank_s,
        unjudged_s=health.unjudged_s,
        view=health.view or "",
    )
    if (incident := health.incident) is not None:
        message.incident.id, message.incident.cause = incident.id, incident.cause.value
        message.incident.opened_ms, message.incident.segments = incident.opened_ms, incident.segments
        message.incident.tenant = incident.tenant
    return message


def unpack(message: state_pb2.CameraHealth) -> CameraHealth:
    """Return a camera's health from its checkpoint; the inverse of `pack`."""
    incident = None
    if message.HasField("incident"):
        stored = message.incident
        incident = CameraIncident(
            stored.id,
            CameraFault(stored.cause),
            stored.opened_ms,
            stored.segments,
            stored.tenant,
        )
    return CameraHealth(
        usual=Usual(
            tuple(
                ReferencePicture(_plane(picture.luma), _plane(picture.detail), picture.seconds)
                for picture in message.pictures
            ),
            np.frombuffer(message.hours, np.uint8).reshape(_HOURS),
            message.hour,
        ),
        levels=Levels(message.similarity, message.kept, message.lost),
        seen_s=message.seen_s,
        checksum=message.checksum if message.HasField("checksum") else None,
        same_s=message.same_s,
        same_keys=message.same_keys,
        still_s=message.still_s,
        quiet_s=message.quiet_s,
        history=np.frombuffer(message.history, np.uint8).reshape(-1, NUMBERS),
        fps=message.fps,
        rate=message.rate,
        jumps=message.jumps,
        fault_s=tuple(message.held_s),
        clear_s=message.clear_s,
        blank_s=message.blank_s,
        unjudged_s=message.unjudged_s,
        view=CameraFault(message.view) if message.view else None,
        incident=incident,
    )


def _plane(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8).reshape(_PLANE)
