"""Makes the gateway's report of a shift from the topics of a fleet, without a gateway."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Message

from lookout.cli.connect import find_bootstrap, reading
from lookout.cli.options import CliError, Position
from lookout.missing import missing_package
from lookout.v1.access_pb2 import Role
from lookout.wire import ACTIONS, ALERTS, CAMERAS, LABELS, VERDICTS, WATCHES

if TYPE_CHECKING:
    from lookout.services.gateway.history.records import Batch, Records
    from lookout.services.gateway.prose import ProseWriter
    from lookout.v1.gateway_pb2 import ShiftReport

_SHIFT_S = 8 * 3600
#: topics with people's actions, labels and the watches. They are read from their beginning, because records
#: may be older than the incidents that they concern
_SAID = (LABELS.name, ACTIONS.name, WATCHES.name, CAMERAS.name)
_DECIDED = (ALERTS.name, VERDICTS.name)


@dataclass(frozen=True, slots=True)
class ShiftTables:
    """A gateway's tables, which the caller fills from topics in one transaction."""

    records: Records
    batch: Batch

    def take(self, message: Message) -> None:
        """Add a record of any topic; records that a report does not use are ignored."""
        if message.topic() in _DECIDED or message.topic() in _SAID:
            self.records.take(self.batch, message)

    def report(
        self, cameras: Sequence[str], begin_ms: int, end_ms: int, writer: ProseWriter | None = None
    ) -> ShiftReport:
        """Return a report about a range of time, from the records that were added.

        Args:
            cameras: Ids and patterns.
            begin_ms: Unix milliseconds.
            end_ms: Unix milliseconds, after `begin_ms`.
            writer: Has a model write prose, too; None: no prose.
        """
        from lookout.services.gateway.history.shift import shift_report
        from lookout.services.gateway.history.shift_text import sentences
        from lookout.services.gateway.principal import Principal

        self.records.end(self.batch)
        principal = Principal("report", Role.ROLE_VIEWER, cameras=() if "*" in cameras else tuple(cameras))
        summary = shift_report(self.batch.connection, principal, None, begin_ms, end_ms)
        summary.sentences.extend(sentences(summary))
        if writer is not None:
            writer.write(summary)
        return summary


@contextmanager
def shift_tables(bootstrap: str) -> Iterator[ShiftTables]:
    """Open tables that already contain people's actions and labels; they are removed at the end.

    Raises:
        CliError: Kafka does not answer.
        MissingPackageError: The packages of the gateway are not installed.
    """
    try:
        from lookout.services.gateway.history.database import Database
        from lookout.services.gateway.history.records import Records
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error

    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'history.db'}")
        try:
            database.migrate()
            records = Records(database)
            with database.writing() as connection:
                tables = ShiftTables(records, records.begin(connection))
                with reading(bootstrap, list(_SAID), Position(oldest=True)) as reader:
                    for message in reader.until_now():
                        tables.take(message)
                yield tables
        finally:
            database.close()


def prose_writer() -> ProseWriter:
    """Return a writer that uses the model in `LOOKOUT_PROSE_URL` and `LOOKOUT_PROSE_MODEL`, as a gateway
    does. The address may be private without `LOOKOUT_URI_NETWORKS`, because the command's user chooses it.

    Raises:
        CliError: The variables are not set.
        StartupError: Their values are not valid.
        MissingPackageError: The packages of the gateway are not installed.
    """
    names = ("LOOKOUT_PROSE_URL", "LOOKOUT_PROSE_MODEL", "LOOKOUT_PROSE_KEY_FILE")
    environment = {name: os.environ[name] for name in names if os.environ.get(name)}
    if "LOOKOUT_PROSE_URL" not in environment:
        raise CliError(
            "no model writes reports here: set LOOKOUT_PROSE_URL to an OpenAI-compatible endpoint (to /v1) "
            "and LOOKOUT_PROSE_MODEL to the model's name there"
        )
    try:
        from lookout.runtime.worker import load_settings
        from lookout.services.gateway.prose import ProseWriter
        from lookout.services.gateway.settings import GatewaySettings
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error

    environment["LOOKOUT_URI_NETWORKS"] = "0.0.0.0/0,::/0"
    return ProseWriter(load_settings(GatewaySettings, environment, mode="local", instance="cli"))


def report(
    cameras: str | Sequence[str] = "*",
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    bootstrap: str | None = None,
    prose: bool = False,
) -> ShiftReport:
    """Report what happened on cameras: incidents, hours, what was not watched, and all of it in sentences.

    The topics are read into temporary tables of a gateway, so that this report equals the gateway's.

    Args:
        cameras: An id or a pattern with `*`, or several.
        since: Begin; a time without a zone is local. None: eight hours before the end.
        until: End; None: now.
        bootstrap: Kafka's address (host:port); None: that of the fleet that runs here.
        prose: Let the model of `LOOKOUT_PROSE_URL` write prose as well (`prose_writer`).

    Returns:
        The report, without unusual spans, which only a gateway with memory reports.

    Raises:
        ValueError: `since` is not before `until`.
        CliError: Kafka does not answer, or no model is named.
        MissingPackageError: The packages of the gateway are not installed.
    """
    writer = prose_writer() if prose else None
    address = find_bootstrap(bootstrap)
    end_ms = round(1000 * (time.time() if until is None else until.timestamp()))
    begin_ms = end_ms - 1000 * _SHIFT_S if since is None else round(1000 * since.timestamp())
    if begin_ms >= end_ms:
        raise ValueError("since: it must be before until")
    with shift_tables(address) as tables:
        with reading(address, list(_DECIDED), Position(at_ms=begin_ms)) as reader:
            for message in reader.until_now():
                tables.take(message)
        names = [cameras] if isinstance(cameras, str) else cameras
        return tables.report(names, begin_ms, end_ms, writer)
