"""Of which wall time of its camera a record of a topic tells, for readers that leave out what was erased."""

from __future__ import annotations

from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ALERTS, FRAMES, PIPELINE, TOKENS, VERDICTS, WireError, from_bytes, from_json

#: topics whose records of an erased time commands do not show
FENCED_TOPICS = frozenset(
    topic.name
    for topic in (FRAMES, TOKENS, VERDICTS, ALERTS, *(flow.dead_letters for flow in PIPELINE.values()))
)


def span_of(topic: str, value: bytes, written_ms: int) -> tuple[int, int] | None:
    """The wall time of a record, in Unix microseconds; None where it is none of its topic's.

    Args:
        topic: One of `FENCED_TOPICS`.
        value: Of the record.
        written_ms: When Kafka got it, Unix milliseconds: of a dead letter nothing else is known.
    """
    try:
        if topic == VERDICTS.name:
            return _stamped(from_json(value, Verdict))
        if topic == ALERTS.name:
            return _stamped(from_json(value, Alert))
        if topic == FRAMES.name:
            frames = from_bytes(value, FramesRecord)
            return _of_stream(frames, frames.event if frames.HasField("event") else frames.segment)
        if topic == TOKENS.name:
            tokens = from_bytes(value, TokensRecord)
            return _of_stream(tokens, tokens.event if tokens.HasField("event") else tokens.block)
    except WireError:
        return None
    return written_ms * 1000, written_ms * 1000


def _stamped(record: Verdict | Alert) -> tuple[int, int]:
    return record.start.ToMicroseconds(), record.end.ToMicroseconds()


def _of_stream(record: FramesRecord | TokensRecord, body: object) -> tuple[int, int]:
    start_us, end_us = (int(getattr(body, name)) for name in ("start_us", "end_us"))
    return record.wall_offset_us + start_us, record.wall_offset_us + end_us
