"""The wire: topics, headers, CloudEvents and ids. Messages are generated from `protos/lookout/v1`."""

from lookout.wire.events import (
    ALERT_TYPE,
    VERDICT_TYPE,
    event_headers,
    event_type,
    from_bytes,
)
from lookout.wire.ids import incident_id, stable_id, tensor_id, verdict_id
from lookout.wire.message_json import WireError, from_json, to_json
from lookout.wire.topics import (
    ALERTS,
    FRAMES,
    INPUT,
    MAX_MESSAGE_BYTES,
    MAX_SEGMENT_BYTES,
    OUTPUT,
    SEGMENTS,
    TOKENS,
    VERDICTS,
    WATCHES,
    Stage,
    Topic,
    all_topics,
    dead_letters,
    state_topic,
)

__all__ = [
    "ALERTS",
    "ALERT_TYPE",
    "FRAMES",
    "INPUT",
    "MAX_MESSAGE_BYTES",
    "MAX_SEGMENT_BYTES",
    "OUTPUT",
    "SEGMENTS",
    "TOKENS",
    "VERDICTS",
    "VERDICT_TYPE",
    "WATCHES",
    "Stage",
    "Topic",
    "WireError",
    "all_topics",
    "dead_letters",
    "event_headers",
    "event_type",
    "from_bytes",
    "from_json",
    "incident_id",
    "stable_id",
    "state_topic",
    "tensor_id",
    "to_json",
    "verdict_id",
]
