"""The one door for records: whatever the bytes are, a message or a `WireError` that says why there is
none.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingOutcome, RecordingPart
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import topics
from lookout.wire.events import from_bytes
from lookout.wire.limits import EPOCH_AHEAD_MS
from lookout.wire.message_json import WireError, from_json

_JSON: Final[dict[str, type[Message]]] = {
    topics.VERDICTS.name: Verdict,
    topics.ALERTS.name: Alert,
    topics.WATCHES.name: Watch,
    topics.CAMERAS.name: Camera,
    topics.ERASURES.name: Erasure,
    topics.RECORDINGS.name: RecordingJob,
    topics.ANSWERS.name: RecordingAnswers,
}
_BINARY: Final[dict[str, type[Message]]] = {
    topics.FRAMES.name: FramesRecord,
    topics.TOKENS.name: TokensRecord,
    topics.RECORDING_PARTS.name: RecordingPart,
    topics.RECORDING_RESULTS.name: RecordingOutcome,
    **{flow.state.name: Checkpoint for flow in (*topics.PIPELINE.values(), *topics.RECORDING_FLOWS)},
}
#: before this moment (2001) a record's time is not Kafka's clock: there is nothing to compare an epoch with
_CLOCK_MS: Final = 10**12


def message_kind(topic: str) -> type[Message] | None:
    """What the records of a topic are; None: bytes of their own (segments, dead letters)."""
    return _JSON.get(topic) or _BINARY.get(topic)


def read_record(topic: str, value: bytes) -> Message:
    """The message in a record of `topic`.

    Raises:
        WireError: It is none, or a field is outside its range.
    """
    if (kind := _JSON.get(topic)) is not None:
        return from_json(value, kind)
    if (kind := _BINARY.get(topic)) is not None:
        return from_bytes(value, kind)
    raise WireError(f"{topic} has no message: its records are bytes")


def check_epoch(epoch: int, record_ms: int) -> None:
    """Check that a stream's epoch is not from the future.

    An epoch is 1000 times the Unix milliseconds of its first segment, and readers leave out what is older
    than the newest one they know: a record of a far epoch would silence its camera until then.

    Args:
        epoch: As the record says.
        record_ms: The record's time stamp in Kafka, Unix milliseconds.

    Raises:
        WireError: It begins more than a day after the record was written.
    """
    if record_ms > _CLOCK_MS and epoch > 1000 * (record_ms + EPOCH_AHEAD_MS):
        raise WireError(f"epoch {epoch} begins {epoch // 1000 - record_ms} ms after the record was written")
