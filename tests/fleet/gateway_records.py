"""Records of a fleet that a gateway's test writes: alerts, verdicts, watches."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from lookout.administration import Writer
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.services.decode.health import TEXTS
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.video.health import CameraFault
from lookout.wire import ALERTS, CAMERA_HEALTH, VERDICTS, WATCHES, incident_id, stable_id, to_json, verdict_id

QUESTION = "Is anyone lying on the ground?"
#: recent, so that the records make events
BEGIN_MS = int(datetime.now(UTC).timestamp() * 1000) // 3_600_000 * 3_600_000 - 3_600_000


def alert(
    camera: str, number: int, kind: Alert.Kind = Alert.KIND_OPENED, tenant: str = "", watch: str = "lying"
) -> Alert:
    """An alert of a camera's incident of this number; each begins a minute after the one before."""
    start_ms = BEGIN_MS + 60_000 * number
    end_ms = start_ms + (20_000 if kind == Alert.KIND_CLOSED else 10_000)
    message = Alert(
        id=stable_id("alert", camera, number, kind),
        incident=incident_id(camera, 1, watch, 1, number),
        kind=kind,
        camera=camera,
        epoch=1,
        watch=watch,
        watch_version=1,
        question=QUESTION,
        score=0.75,
        peak=0.875,
        windows=3,
        tenant=tenant,
    )
    message.start.FromMilliseconds(start_ms)
    message.end.FromMilliseconds(end_ms)
    return message


def health_alert(camera: str, number: int, cause: str, kind: Alert.Kind = Alert.KIND_OPENED) -> Alert:
    """An alert of what is wrong with a camera, as decode writes it."""
    message = alert(camera, number, kind, watch=CAMERA_HEALTH)
    message.cause, message.question = cause, TEXTS[CameraFault(cause)]
    message.score, message.peak = float(kind != Alert.KIND_CLOSED), 1.0
    return message


def verdict(
    camera: str, window: int, p_yes: float | None = 0.25, tenant: str = "", watch: str = "lying"
) -> Verdict:
    """A verdict of a window of 10 s that slides by 2 s."""
    message = Verdict(
        id=verdict_id(camera, 1, watch, 1, window),
        camera=camera,
        epoch=1,
        window=window,
        watch=watch,
        watch_version=1,
        question=QUESTION,
        outcome=Verdict.OUTCOME_GAP if p_yes is None else Verdict.OUTCOME_ANSWERED,
        p_yes=p_yes,
        basis="" if p_yes is None else "incremental",
        tenant=tenant,
    )
    message.cost.flops_prefill, message.cost.flops_question = 1000, 10
    message.cost.device_us = 250_000
    end_ms = BEGIN_MS + 10_000 + 2000 * window
    message.start.FromMilliseconds(end_ms - 10_000)
    message.end.FromMilliseconds(end_ms)
    return message


def watch(identity: str = "lying", tenant: str = "", version: int = 1) -> Watch:
    """A watch of all cameras."""
    return Watch(id=identity, version=version, question=QUESTION, tenant=tenant)


def publish(kafka: str, messages: Iterable[Message]) -> None:
    """Write messages to their topics."""
    writer = Writer({"bootstrap.servers": kafka})
    for message in messages:
        if isinstance(message, Watch):
            writer.write(WATCHES.name, {message.id: to_json(message)})
        elif isinstance(message, Alert):
            writer.write(ALERTS.name, {message.camera: to_json(message)})
        elif isinstance(message, Verdict):
            writer.write(VERDICTS.name, {message.camera: to_json(message)})


def records(kafka: str, topic: str) -> list[Any]:
    """The committed records of a topic up to its end now."""
    with reading(kafka, [topic], Position(oldest=True)) as reader:
        return list(reader.until_now())
