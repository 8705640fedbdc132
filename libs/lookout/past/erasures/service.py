"""Erasures in a service: the table of `erasures.v1`, and a producer for confirmations."""

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
    """The erasures that a service knows: all that are, or ever were, in `erasures.v1`. Thread-safe.

    A range that was erased stays fenced whatever is written to or deleted from the topic later, and also
    after a restart if there is a disk.

    Args:
        table: Follows the topic; its check leaves out records that the fleet did not sign.
        signer: Signs records that are written again.
        folder: Keeps the erasures on a disk; None: they are not kept.
    """

    def __init__(self, table: Table, signer: ErasureSigner, folder: Path | None = None) -> None:
        self._table, self._signer = table, signer
        self._file = None if folder is None else private_folder(folder) / _FILE
        known = [] if self._file is None else _kept(self._file)
        self._history = ErasureHistory(signer, known)
        self._written = len(known)
        self._lock = threading.Lock()
        self._view: View | None = None
        self._log = self._history.log.copy()
        self._key = signer.key
        self._complete: tuple[View | None, str] | None = None  # when the topic had all its records

    def version(self) -> int:
        """Return a number that changes whenever the erasures do."""
        self.read()
        return self._history.version

    def erasures(self) -> Iterable[Erasure]:
        """Return the erasures requested."""
        return self.read().erasures.values()

    def read(self) -> ErasureLog:
        """Return the current log; it does not change afterwards."""
        view = self._table.view()
        if view is not self._view:
            with self._lock:
                for key in self._table.changes():
                    for row in self._table.past(key):
                        self._history.take(key, row.value)
                self._keep()
                self._log, self._view = self._history.log.copy(), view
        return self._log

    def lost(self) -> dict[str, bytes]:
        """Return records that should be in the topic and are not: deleted, replaced, or signed with an old
        token."""
        self.read()
        now = self._view, self._signer.key
        if now == self._complete:
            return {}
        with self._lock:
            if self._key != now[1]:
                self._history.sign_again(self._signer)
                self._key = now[1]
            rows = {key: to_json(message) for key, message in self._history.standing.items()}
        lost = {key: value for key, value in rows.items() if not self._stands(key, value)}
        if not lost:
            self._complete = now
        return lost

    def _stands(self, key: str, value: bytes) -> bool:
        row = self._table.standing(key)
        # For a confirmation or a member, another signed row is a newer one, which comes in next.
        return row == value or (row is not None and "@" in key)

    def _keep(self) -> None:
        erasures = self._history.log.erasures
        if self._file is None or len(erasures) == self._written:
            return
        try:
            replace_file(self._file, b"".join(to_json(erasure) + b"\n" for erasure in erasures.values()))
        except OSError as error:  # a full disk; the next change tries again
            _log.error("erasures could not be saved to disk", error=str(error))
        else:
            self._written = len(erasures)


def _kept(file: Path) -> list[Erasure]:
    """Read the erasures kept on a disk."""
    try:
        lines = read_file(file).splitlines()
        return [from_json(line, Erasure) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, WireError) as error:
        raise StartupError(f"{file} cannot be read: {error}; restore it, or remove it") from error


def live_fence(context: Context[Any], folder: Path | None = None) -> tuple[LiveFence, LiveErasures]:
    """Return the fence of a service, and the erasures that it is made from; both follow `erasures.v1`.

    Args:
        context: The service's context.
        folder: Keeps the erasures on a disk of this instance; None: they are not kept.
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
    """Carry out erasures in a service: those requested so far, and from now on.

    Args:
        context: The service's context.
        erasures: The erasures requested (`live_fence`).
        steps: Functions that erase a range in one place, by the place's name.
        stays: Whether the process leaves data behind, on a disk.
        member: Name that confirms for all processes that share what they erase, where one of them is enough;
            None: this process.
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
    """Read the erasures that Kafka has now; none if a fleet of an earlier release has no such topic.

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
