"""Erasures in a service: the table of `erasures.v1`, and a producer for confirmations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from prometheus_client import Gauge

from lookout.errors import TransientError
from lookout.past.erasures.eraser import Eraser, Step
from lookout.past.erasures.fence import Fence, LiveFence
from lookout.past.erasures.records import ErasureLog, erasure_fault, read_log
from lookout.past.erasures.signing import ConfirmationSigner
from lookout.runtime.kafka_clients import Producer
from lookout.runtime.observe import logs
from lookout.runtime.worker import Context, ServiceSettings
from lookout.runtime.worker.tables import Table
from lookout.runtime.worker.topic_reader import read_topic
from lookout.v1.erasures_pb2 import Erasure
from lookout.wire import ERASURES

_SEND_S = 30.0


def live_fence(context: Context[Any]) -> tuple[LiveFence, Callable[[], ErasureLog]]:
    """The fence of a service, and what stands in the topic: both follow it."""
    table = context.table(ERASURES.name, check=erasure_fault)
    signer = ConfirmationSigner.of(context.settings)

    def read() -> ErasureLog:
        return log_of(table, signer)

    def erasures() -> Iterable[Erasure]:
        return read().erasures.values()

    return LiveFence(table.view, erasures), read


def log_of(table: Table, signer: ConfirmationSigner | None = None) -> ErasureLog:
    """What a table holds. Of an erasure its first value stands, of the others the newest."""
    view = table.view()
    rows = ((key, value) for key, values in view.history.items() for value in values)
    return read_log(rows, signer)


def join(
    context: Context[Any],
    read: Callable[[], ErasureLog],
    steps: Mapping[str, Step],
    *,
    stays: bool,
) -> Eraser:
    """Carry out in a service what was asked for, and go on doing so.

    Args:
        context: The service's.
        read: What stands in the topic (`live_fence`).
        steps: What it erases.
        stays: Whether something outlives the process.
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

    signer = ConfirmationSigner.of(settings)
    eraser = Eraser(read, publish, settings.instance, context.name, steps, stays=stays, signer=signer)
    eraser.join()
    Gauge(
        "lookout_erasures_open",
        "erasures that this process has not carried out",
        registry=context.metrics.registry,
    ).set_function(lambda: eraser.open)
    context.on_close(eraser.stop)
    eraser.start(context.supervisor)
    return eraser


def read_fence(settings: ServiceSettings) -> Fence:
    """What was erased, as Kafka says it now: nothing where a fleet of an earlier release has no such topic.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka refuses.
    """
    messages = read_topic(settings, "fence", ERASURES.name)
    try:
        log = read_log((message.key() or b"", message.value()) for message in messages)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return Fence()
    return Fence(log.erasures.values())
