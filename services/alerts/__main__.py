"""`python -m services.alerts`: verdicts.v1 in, alerts.v1 out."""

from __future__ import annotations

from lookout.runtime import Context, ServiceSettings, main
from lookout.runtime.tables import Table
from lookout.v1 import watches_pb2
from lookout.wire import WATCHES, Stage, WireError, from_json
from services.alerts.handler import AlertsHandler


def make_handler(context: Context[ServiceSettings]) -> AlertsHandler:
    """The handler over the table of watches."""
    table = context.table(WATCHES.name)
    return AlertsHandler(lambda watch: is_watched(table, watch))


def is_watched(table: Table, watch: str) -> bool:
    """Whether a watch stands. One that cannot be read does: prefill reports it, nothing closes for it."""
    row = table.view().rows.get(watch)
    if row is None:
        return False
    try:
        return not from_json(row, watches_pb2.Watch).disabled
    except WireError:
        return True


if __name__ == "__main__":
    main(Stage.ALERTS, ServiceSettings, make_handler)
