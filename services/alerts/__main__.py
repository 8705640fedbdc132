"""`python -m lookout.services.alerts`: verdicts.v1 in, alerts.v1 out."""

from __future__ import annotations

import time

from lookout.past.erasures import live_fence
from lookout.rules import covers, watch_fault
from lookout.runtime.worker import Context, ServiceSettings, main
from lookout.services.alerts.handler import AlertsHandler
from lookout.services.alerts.watch_rules import WatchRules
from lookout.v1 import watches_pb2
from lookout.wire import CAMERA_OFFLINE, WATCHES, Stage, WireError, from_json
from lookout.wire.limits import ALL_WATCHES


def make_handler(context: Context[ServiceSettings]) -> AlertsHandler:
    """The handler over the table of watches."""
    table = context.table(WATCHES.name, check=watch_fault, limit=ALL_WATCHES)
    fence, _ = live_fence(context)
    return AlertsHandler(
        lambda watch, camera, tenant: is_watched(table.newest(watch), time.time() * 1000, camera, tenant),
        offline=lambda: offline_watch(table.newest(CAMERA_OFFLINE), time.time() * 1000),
        watch_rules=WatchRules(table.past, table.reach),
        fence=fence,
    )


def offline_watch(row: bytes | None, now_ms: float) -> watches_pb2.Watch | None:
    """The watch `camera-offline`, or None if no active, readable one exists."""
    if row is None or not is_watched(row, now_ms):
        return None
    try:
        return from_json(row, watches_pb2.Watch)
    except WireError:
        return None


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
        watch = from_json(row, watches_pb2.Watch)
    except WireError:
        return True
    if now_ms < watch.active_from.ToMilliseconds():
        return True
    return not watch.disabled and (tenant is None or covers(watch, camera, tenant))


if __name__ == "__main__":
    main(Stage.ALERTS, ServiceSettings, make_handler)
