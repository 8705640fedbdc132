"""Finds the wall time that a record is about, so that readers can omit records of erased times."""

from __future__ import annotations

from contextlib import suppress

from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import (
    ALERTS,
    CANARY_VERDICTS,
    FRAMES,
    NOTIFY,
    PIPELINE,
    TOKENS,
    VERDICTS,
    Received,
    WireError,
    received,
)

#: topics whose records commands do not show if their time was erased
FENCED_TOPICS = frozenset(
    topic.name
    for topic in (
        FRAMES,
        TOKENS,
        VERDICTS,
        CANARY_VERDICTS,
        ALERTS,
        *(flow.dead_letters for flow in (*PIPELINE.values(), NOTIFY)),
    )
)


def span_of(record: Received) -> tuple[int, int]:
    """Return begin and end of the wall time that a record is about, Unix microseconds.

    For dead letters and malformed records, both are the record's time in Kafka.

    Args:
        record: A record of one of `FENCED_TOPICS`.
    """
    with suppress(WireError):
        if record.topic in (VERDICTS.name, CANARY_VERDICTS.name):
            return _stamped(received(Verdict, record))
        if record.topic == ALERTS.name:
            return _stamped(received(Alert, record))
        if record.topic == FRAMES.name:
            frames = received(FramesRecord, record)
            return _of_stream(frames, frames.event if frames.HasField("event") else frames.segment)
        if record.topic == TOKENS.name:
            tokens = received(TokensRecord, record)
            return _of_stream(tokens, tokens.event if tokens.HasField("event") else tokens.block)
    return record.timestamp_ms * 1000, record.timestamp_ms * 1000


def _stamped(record: Verdict | Alert) -> tuple[int, int]:
    return record.start.ToMicroseconds(), record.end.ToMicroseconds()


def _of_stream(record: FramesRecord | TokensRecord, body: object) -> tuple[int, int]:
    start_us, end_us = (int(getattr(body, name)) for name in ("start_us", "end_us"))
    return record.wall_offset_us + start_us, record.wall_offset_us + end_us
