"""Which watches stand at a moment, by the newest records of their topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lookout.rules.watches import covers
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, WireError, from_json


def is_watched(row: bytes | None, now_ms: float, camera: str = "", tenant: str | None = None) -> bool:
    """Whether a watch is active: one that is disabled, or asks the camera no longer, from a later moment on
    is active until then.

    One that cannot be read counts as active: prefill reports it, and its incidents stay open.

    Args:
        row: The newest record of the watch.
        now_ms: Unix milliseconds.
        camera: The camera's id.
        tenant: Whose the camera is; None: that is not known, and any camera counts as asked.
    """
    if row is None:
        return False
    try:
        watch = from_json(row, Watch)
    except WireError:
        return True
    if now_ms < watch.active_from.ToMilliseconds():
        return True
    return not watch.disabled and (tenant is None or covers(watch, camera, tenant))


def offline_watch(row: bytes | None, now_ms: float) -> Watch | None:
    """The watch `camera-offline`, or None if no active, readable one exists."""
    if row is None or not is_watched(row, now_ms):
        return None
    try:
        return from_json(row, Watch)
    except WireError:
        return None


def asks_for_outages(history: Mapping[str, Sequence[bytes]], now_ms: float, camera: str, tenant: str) -> bool:
    """Whether the watch `camera-offline` decides about a camera's outages: it covers the camera, and some
    other watch asks it. Then nobody else opens an incident of them.

    Args:
        history: Of every watch its records, oldest first.
        now_ms: Unix milliseconds.
        camera: The camera's id.
        tenant: Whose the camera is.
    """
    newest = {name: rows[-1] for name, rows in history.items() if rows}
    watch = offline_watch(newest.pop(CAMERA_OFFLINE, None), now_ms)
    if watch is None or not covers(watch, camera, tenant):
        return False
    return any(is_watched(row, now_ms, camera, tenant) for row in newest.values())
