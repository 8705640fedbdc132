"""`python -m lookout.services.alerts`: reads verdicts.v1, writes alerts.v1."""

from __future__ import annotations

import time

from lookout.past.erasures import live_fence
from lookout.rules import is_watched, offline_watch, watch_fault
from lookout.runtime.worker import Context, ServiceSettings, main
from lookout.services.alerts.handler import AlertsHandler
from lookout.services.alerts.watch_rules import WatchRules
from lookout.wire import CAMERA_OFFLINE, WATCHES, Stage
from lookout.wire.limits import ALL_WATCHES


def make_handler(context: Context[ServiceSettings]) -> AlertsHandler:
    """Build the handler over the table of watches."""
    table = context.table(WATCHES.name, check=watch_fault, limit=ALL_WATCHES)
    fence, _ = live_fence(context)
    return AlertsHandler(
        lambda watch, camera, tenant: is_watched(table.newest(watch), time.time() * 1000, camera, tenant),
        offline=lambda: offline_watch(table.newest(CAMERA_OFFLINE), time.time() * 1000),
        watch_rules=WatchRules(table.past, table.reach),
        fence=fence,
    )


if __name__ == "__main__":
    main(Stage.ALERTS, ServiceSettings, make_handler)
