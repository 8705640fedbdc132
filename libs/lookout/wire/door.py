"""Parses and validates the records of every topic; malformed input raises `WireError`.

Readers of Kafka call `received`. It checks the fields' ranges, the key, the epoch and every reference before
anything acts on a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from lookout.v1.access_pb2 import ApiToken, AuditEntry
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.labels_pb2 import Label
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.notifications_pb2 import Notification
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingOutcome, RecordingPart
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import topics
from lookout.wire.events import from_bytes
from lookout.wire.ids import label_key
from lookout.wire.limits import EPOCH_AHEAD_MS
from lookout.wire.message_json import WireError, from_json
from lookout.wire.plans import check_outcome, check_part
from lookout.wire.ranges import RangeError
from lookout.wire.references import BadReferenceError, check_frames, check_references

_JSON: Final[dict[str, type[Message]]] = {
    topics.VERDICTS.name: Verdict,
    topics.ALERTS.name: Alert,
    topics.CANARY_VERDICTS.name: Verdict,
    topics.WATCHES.name: Watch,
    topics.CAMERAS.name: Camera,
    topics.ERASURES.name: Erasure,
    topics.LABELS.name: Label,
    topics.ACTIONS.name: IncidentAction,
    topics.ACCESS.name: ApiToken,
    topics.AUDIT.name: AuditEntry,
    topics.NOTIFICATIONS.name: Notification,
    topics.MASKS.name: CameraMasks,
    topics.RECORDINGS.name: RecordingJob,
    topics.ANSWERS.name: RecordingAnswers,
}
_BINARY: Final[dict[str, type[Message]]] = {
    topics.FRAMES.name: FramesRecord,
    topics.TOKENS.name: TokensRecord,
    topics.RECORDING_PARTS.name: RecordingPart,
    topics.RECORDING_RESULTS.name: RecordingOutcome,
    **{
        flow.state.name: Checkpoint
        for flow in (*topics.PIPELINE.values(), *topics.RECORDING_FLOWS, topics.NOTIFY)
    },
}
#: messages that do not contain their key: a checkpoint's key is its camera, an erasure's key its kind
_KEYLESS: Final = frozenset({Checkpoint, Erasure})
_KEYS: Final[dict[type[Message], Callable[[Any], str]]] = {
    FramesRecord: lambda message: message.camera,
    TokensRecord: lambda message: message.camera,
    Verdict: lambda message: message.camera,
    Alert: lambda message: message.camera,
    Watch: lambda message: message.id,
    Camera: lambda message: message.id,
    Label: label_key,
    IncidentAction: lambda message: message.camera,
    ApiToken: lambda message: message.id,
    AuditEntry: lambda message: message.actor,
    Notification: lambda message: message.id,
    CameraMasks: lambda message: message.camera,
    RecordingJob: lambda message: message.id,
    RecordingPart: lambda message: f"{message.job}/{message.number}",
    RecordingOutcome: lambda message: message.job,
    RecordingAnswers: lambda message: message.id,
}
#: checks that the fields of a message are consistent with each other
_WHOLE: Final[dict[type[Message], Callable[[Any], None]]] = {
    FramesRecord: check_frames,
    RecordingPart: check_part,
    RecordingOutcome: check_outcome,
}
M = TypeVar("M", bound=Message)


class Received(Protocol):
    """A record as read from Kafka (`lookout.runtime.worker.Record`)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def camera(self) -> str: ...
    @property
    def value(self) -> bytes: ...
    @property
    def timestamp_ms(self) -> int: ...


#: Unix ms (2001). An earlier record time does not come from Kafka's clock, so epochs are not compared with it
_CLOCK_MS: Final = 10**12


def message_kind(topic: str) -> type[Message] | None:
    """Return the message type of a topic's records; None for raw bytes (segments, dead letters)."""
    return _JSON.get(topic) or _BINARY.get(topic)


def is_json(topic: str) -> bool:
    """Whether the records of a topic are JSON."""
    return topic in _JSON


def read_record(topic: str, value: bytes) -> Message:
    """Parse the message in a record of `topic`.

    Raises:
        WireError: The bytes are not a message of this topic, or a field is outside its range.
    """
    if (kind := _JSON.get(topic)) is not None:
        return from_json(value, kind)
    if (kind := _BINARY.get(topic)) is not None:
        return from_bytes(value, kind)
    raise WireError(f"{topic} has no message type: its records are raw bytes")


def received(kind: type[M], record: Received) -> M:
    """Parse and check the message in a record from Kafka. Every stage reads its records with this function.

    Args:
        kind: The message type of the record's topic.
        record: The record: its topic, partition, key, value and time.

    Raises:
        WireError: The value is not such a message, a field is outside its range, the key does not match the
            content, the epoch is in the future, or a reference is invalid.
    """
    if message_kind(record.topic) is not kind:
        raise WireError(f"records of {record.topic} are not {kind.DESCRIPTOR.full_name}")
    message = (from_json if record.topic in _JSON else from_bytes)(record.value, kind)
    check_message(message, key=record.camera, partition=record.partition, record_ms=record.timestamp_ms)
    return message


def check_message(
    message: Message, *, key: str | None = None, partition: int | None = None, record_ms: int = 0
) -> None:
    """Check that the fields of a message are consistent with each other and with its record.

    Args:
        message: A message whose fields are within their ranges.
        key: The record's key; None: not known.
        partition: The record's partition; None: not known.
        record_ms: The record's time in Kafka, Unix milliseconds; 0: not known.

    Raises:
        WireError: The fields are inconsistent with each other or with the record.
    """
    kind = type(message)
    if key is not None and kind not in _KEYLESS and (own := _KEYS[kind](message)) != key:
        raise WireError(f"{kind.DESCRIPTOR.full_name} of {own!r} is stored under the key {key!r}")
    if "epoch" in kind.DESCRIPTOR.fields_by_name:
        check_epoch(message.epoch, record_ms)  # type: ignore[attr-defined]
    if isinstance(message, Checkpoint):  # the epoch is in the stage's state
        for field, state in message.ListFields():
            if field.message_type is not None and "epoch" in field.message_type.fields_by_name:
                check_epoch(state.epoch, record_ms)
    try:
        check_references(message, partition)
        if (check := _WHOLE.get(kind)) is not None:
            check(message)
    except (BadReferenceError, RangeError) as error:
        raise WireError(str(error)) from error


def check_epoch(epoch: int, record_ms: int) -> None:
    """Check that a stream's epoch is not from the future.

    An epoch is 1000 times the Unix milliseconds of its first segment, plus its partition. Readers ignore
    records older than the newest epoch that they know, so a record with an epoch far in the future would
    silence its camera until then.

    Args:
        epoch: The epoch in the record.
        record_ms: The record's time stamp in Kafka, Unix milliseconds.

    Raises:
        WireError: The epoch begins more than a day after the record was written.
    """
    if record_ms > _CLOCK_MS and epoch > 1000 * (record_ms + EPOCH_AHEAD_MS):
        ahead_h = (epoch // 1000 - record_ms) / 3_600_000
        raise WireError(
            f"epoch {epoch} begins {ahead_h:.0f} h after the record was written: the clock of Kafka's "
            "machine, or of decode's, is wrong: set it (NTP)"
        )
