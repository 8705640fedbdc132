"""Connects a service to erasures: it follows `erasures.v1`, and carries out and confirms erasures."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from prometheus_client import Gauge

from lookout.disk import private_folder, read_file, replace_file
from lookout.errors import StartupError, TransientError
from lookout.past.erasures.eraser import Eraser, Step
from lookout.past.erasures.fence import Fence, LiveFence
from lookout.past.erasures.records import ErasureHistory, ErasureLog, erasure_fault, read_log
from lookout.past.erasures.signing import ErasureSigner
from lookout.runtime.kafka_clients import Producer
from lookout.runtime.observe import logs
from lookout.runtime.worker import Context, ServiceSettings
from lookout.runtime.worker.tables import Table, View
from lookout.runtime.worker.topic_reader import read_topic
from lookout.v1.erasures_pb2 import Erasure
from lookout.wire import ERASURES, WireError, from_json, to_json

_SEND_S: Final = 30.0
_FILE: Final = "erasures.jsonl"
_log = logs.get("erasures")


class LiveErasures:
    """All erasures that are in `erasures.v1`, or were while this service ran. Thread-safe.

    An erased range stays fenced, whatever is written to the topic or deleted from it later. With a folder, it
    also stays fenced after a restart.

    Args:
        table: Follows the topic; its check rejects records that the fleet did not sign.
        signer: Signs records that are written again.
        folder: Folder on a disk that stores the erasures; None: they are not stored.
    """

    def __init__(self, table: Table, signer: ErasureSigner, folder: Path | None = None) -> None:
        self._table, self._signer = table, signer
        self._file = None if folder is None else private_folder(folder) / _FILE
        known = [] if self._file is None else _stored_erasures(self._file)
        self._history = ErasureHistory(signer, known)
        self._stored_count = len(known)
        self._lock = threading.Lock()
        self._view: View | None = None
        self._log = self._history.log.copy()
        self._key = signer.key
        # View and token at which no record was missing from the topic; None: not checked yet.
        self._complete: tuple[View | None, str] | None = None

    def version(self) -> int:
        """Return a number that increases with every new erasure."""
        self.read()
        return self._history.version

    def erasures(self) -> Iterable[Erasure]:
        """Return the requested erasures."""
        return self.read().erasures.values()

    def read(self) -> ErasureLog:
        """Return a snapshot of the current log."""
        view = self._table.view()
        if view is not self._view:
            with self._lock:
                for key in self._table.changes():
                    for row in self._table.past(key):
                        self._history.take(key, row.value)
                self._store()
                self._log, self._view = self._history.log.copy(), view
        return self._log

    def lost(self) -> dict[str, bytes]:
        """Return the records that are missing from the topic, by key: those that were deleted, replaced, or
        signed with an old token."""
        self.read()
        now = self._view, self._signer.key
        if now == self._complete:
            return {}
        with self._lock:
            if self._key != now[1]:
                self._history.sign_again(self._signer)
                self._key = now[1]
            rows = {key: to_json(message) for key, message in self._history.standing.items()}
        lost = {key: value for key, value in rows.items() if not self._is_in_topic(key, value)}
        if not lost:
            self._complete = now
        return lost

    def _is_in_topic(self, key: str, value: bytes) -> bool:
        row = self._table.standing(key)
        # A different signed record of a confirmation or a member is a newer one, which is read next.
        return row == value or (row is not None and "@" in key)

    def _store(self) -> None:
        """Write the erasures to the folder if there are new ones."""
        erasures = self._history.log.erasures
        if self._file is None or len(erasures) == self._stored_count:
            return
        try:
            replace_file(self._file, b"".join(to_json(erasure) + b"\n" for erasure in erasures.values()))
        except OSError as error:  # for example a full disk; retried at the next change
            _log.error("erasures could not be saved to disk", error=str(error))
        else:
            self._stored_count = len(erasures)


def _stored_erasures(file: Path) -> list[Erasure]:
    """Read the erasures stored in a file; none if there is no file.

    Raises:
        StartupError: The file cannot be read.
    """
    try:
        lines = read_file(file).splitlines()
        return [from_json(line, Erasure) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, WireError) as error:
        raise StartupError(
            f"{file}, which stores the erasures, cannot be read: {error}; restore it from a backup, or "
            "remove it to use only the erasures in Kafka"
        ) from error


def live_fence(context: Context[Any], folder: Path | None = None) -> tuple[LiveFence, LiveErasures]:
    """Return a service's fence and the erasures behind it. Both follow `erasures.v1`.

    Args:
        context: The service's context.
        folder: Folder on a disk of this instance that stores the erasures; None: they are not stored.
    """
    signer = ErasureSigner.of(context.settings)
    table = context.table(ERASURES.name, check=lambda key, value: erasure_fault(key, value, signer))
    live = LiveErasures(table, signer, folder)
    return LiveFence(live.version, live.erasures), live


def join(
    context: Context[Any],
    erasures: LiveErasures,
    steps: Mapping[str, Step],
    *,
    stays: bool,
    member: str | None = None,
) -> Eraser:
    """Make a service a member: carry out the erasures requested so far, then those requested from now on.

    Args:
        context: The service's context.
        erasures: The requested erasures (`live_fence`).
        steps: Functions that erase a range in one place, by the place's name.
        stays: Whether data remain on a disk when the process ends.
        member: Name of the member. Processes that share the data to erase give the same name, because it is
            enough if one of them confirms. None: this process's name.

    Returns:
        The running eraser; it is stopped when the context closes.

    Raises:
        TransientError: Kafka does not accept the announcement.
    """
    settings: ServiceSettings = context.settings
    producer = Producer(settings.kafka(**{"enable.idempotence": True}), logger=logs.client_logger("erasures"))

    def publish(key: str, value: bytes | None) -> None:
        failures: list[str] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                failures.append(str(error))

        producer.produce(ERASURES.name, key=key, value=value, on_delivery=delivered)
        if producer.flush(_SEND_S) or failures:
            raise TransientError(f"{ERASURES.name}: {failures[0] if failures else 'Kafka does not answer'}")

    signer = ErasureSigner.of(settings)
    eraser = Eraser(
        erasures.read,
        publish,
        member or settings.instance,
        context.name,
        steps,
        stays=stays,
        signer=signer,
        lost=erasures.lost,
    )
    eraser.join()
    Gauge(
        "lookout_erasures_open",
        "erasures that this process has yet to carry out",
        registry=context.metrics.registry,
    ).set_function(lambda: eraser.open)
    context.on_close(eraser.stop)
    eraser.start(context.supervisor)
    return eraser


def read_fence(settings: ServiceSettings) -> Fence:
    """Return a fence with the erasures that Kafka has now; an empty one if the topic does not exist, as in
    fleets of earlier releases.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka rejects the request.
    """
    messages = read_topic(settings, "fence", ERASURES.name)
    try:
        rows = ((message.key() or b"", message.value()) for message in messages)
        log = read_log(rows, ErasureSigner.of(settings))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return Fence()
    return Fence(log.erasures.values())
