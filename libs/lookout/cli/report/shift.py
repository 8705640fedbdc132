"""A report of a shift from the topics of a fleet: what its gateway says, without a gateway."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lookout.cli.connect import find_bootstrap, reading
from lookout.cli.options import Position
from lookout.missing import missing_package
from lookout.v1.access_pb2 import Role
from lookout.wire import ACTIONS, ALERTS, LABELS, VERDICTS

if TYPE_CHECKING:
    from lookout.v1.gateway_pb2 import ShiftReport

_SHIFT_S = 8 * 3600


def report(
    cameras: str | Sequence[str] = "*",
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    bootstrap: str | None = None,
) -> ShiftReport:
    """Report what happened on cameras: incidents, hours, what was not watched, and all of it in sentences.

    The topics are read into tables of the gateway, which are removed afterwards: both say the same.

    Args:
        cameras: An id or a pattern with `*`, or several.
        since: Begin; a time without a zone is local. None: eight hours before the end.
        until: End; None: now.
        bootstrap: Kafka's address (host:port); None: that of the fleet that runs here.

    Returns:
        The report; unusual spans are in those of a gateway with memory alone.

    Raises:
        CliError: Kafka does not answer.
        MissingPackageError: The packages of the gateway are not installed.
    """
    try:
        from lookout.services.gateway.history.database import Database
        from lookout.services.gateway.history.records import Records
        from lookout.services.gateway.history.shift import shift_report
        from lookout.services.gateway.history.shift_text import sentences
        from lookout.services.gateway.principal import Principal
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error

    address = find_bootstrap(bootstrap)
    end_ms = round(1000 * (time.time() if until is None else until.timestamp()))
    begin_ms = end_ms - 1000 * _SHIFT_S if since is None else round(1000 * since.timestamp())
    patterns = (cameras,) if isinstance(cameras, str) else tuple(cameras)
    principal = Principal("report", Role.ROLE_VIEWER, cameras=() if "*" in patterns else patterns)
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'history.db'}")
        try:
            database.migrate()
            records = Records(database)
            with database.writing() as connection:
                batch = records.begin(connection)
                for topics, start in (
                    ([LABELS.name, ACTIONS.name], Position(oldest=True)),
                    ([ALERTS.name, VERDICTS.name], Position(at_ms=begin_ms)),
                ):
                    with reading(address, topics, start) as reader:
                        for message in reader.until_now():
                            records.take(batch, message)
                records.end(batch)
            with database.reading() as connection:
                summary = shift_report(connection, principal, None, begin_ms, end_ms)
        finally:
            database.close()
    summary.sentences.extend(sentences(summary))
    return summary
