"""Tells which watches are active at a moment, according to the newest records of their topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lookout.rules.watches import covers
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, WireError, from_json


def is_watched(row: bytes | None, now_ms: float, camera: str = "", tenant: str | None = None) -> bool:
    """Whether a watch is active.

    A change takes effect at the record's `active_from`: if a watch is disabled or stops covering the camera
    as of a later moment, it is active until then. A record that cannot be read counts as active: prefill
    reports it, and its incidents stay open.

    Args:
        row: The newest record of the watch; None: there is none.
        now_ms: Unix milliseconds.
        camera: The camera's id.
        tenant: The camera's tenant; None: unknown, and every camera counts as covered.
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
    """Return the watch `camera-offline`; None if there is no active, readable one."""
    if row is None or not is_watched(row, now_ms):
        return None
    try:
        return from_json(row, Watch)
    except WireError:
        return None


def asks_for_outages(history: Mapping[str, Sequence[bytes]], now_ms: float, camera: str, tenant: str) -> bool:
    """Whether the watch `camera-offline` decides about a camera's outages.

    It does if it covers the camera and another watch is active there. Then only `camera-offline` opens
    incidents for outages.

    Args:
        history: The records of every watch, oldest first.
        now_ms: Unix milliseconds.
        camera: The camera's id.
        tenant: The camera's tenant.
    """
    newest = {name: rows[-1] for name, rows in history.items() if rows}
    watch = offline_watch(newest.pop(CAMERA_OFFLINE, None), now_ms)
    if watch is None or not covers(watch, camera, tenant):
        return False
    return any(is_watched(row, now_ms, camera, tenant) for row in newest.values())
