"""The topic table: the one place that says which topics exist and how they are configured.

The chart, the local fleet, the start-up check of every service and the docs derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_SEGMENT_BYTES: Final = 16 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 17 * 1024 * 1024  # a full segment and its headers
HOUR_MS: Final = 3_600_000


class Stage(StrEnum):
    """The stages of the pipeline: the names of services, consumer groups and state topics."""

    DECODE = "decode"
    PRUNE_ENCODE = "prune-encode"
    PREFILL = "prefill"
    ALERTS = "alerts"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the wire.

    `pipeline` topics share one partition count, fixed at install: each stage writes to the partition number
    it read from. `retention_ms` None means compacted: the newest value of a key stays for ever.
    """

    name: str
    value: str
    pipeline: bool = True
    retention_ms: int | None = 24 * HOUR_MS
    max_message_bytes: int = 1024 * 1024
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def compacted(self) -> bool:
        """Whether the topic is a table."""
        return self.retention_ms is None

    def config(self) -> dict[str, str]:
        """Kafka's topic settings."""
        cleanup = (
            {"cleanup.policy": "compact"}
            if self.retention_ms is None
            else {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}
        )
        return {**cleanup, "max.message.bytes": str(self.max_message_bytes), **self.extra}


SEGMENTS: Final = Topic(
    "camera.segments.v1", "container bytes, or a URI (text/uri-list)", max_message_bytes=MAX_MESSAGE_BYTES
)
FRAMES: Final = Topic("frames.v1", "lookout.v1.FramesRecord")
TOKENS: Final = Topic("tokens.v1", "lookout.v1.TokensRecord")
VERDICTS: Final = Topic(
    "verdicts.v1", "CloudEvents, lookout.v1.Verdict as JSON", retention_ms=7 * 24 * HOUR_MS
)
ALERTS: Final = Topic("alerts.v1", "CloudEvents, lookout.v1.Alert as JSON", retention_ms=30 * 24 * HOUR_MS)
WATCHES: Final = Topic("watches.v1", "lookout.v1.Watch as JSON", pipeline=False, retention_ms=None)


def state_topic(stage: Stage) -> Topic:
    """The compacted topic of one stage's checkpoints (lookout.v1.Checkpoint)."""
    return Topic(f"{stage}.state.v1", "lookout.v1.Checkpoint", retention_ms=None)


def dead_letters(source: Topic) -> Topic:
    """Where records of `source` go that cannot be processed: the original bytes, the reason in headers."""
    return Topic(
        f"{source.name}.dlq",
        "original bytes",
        retention_ms=7 * 24 * HOUR_MS,
        max_message_bytes=source.max_message_bytes,
    )


INPUT: Final[dict[Stage, Topic]] = {
    Stage.DECODE: SEGMENTS,
    Stage.PRUNE_ENCODE: FRAMES,
    Stage.PREFILL: TOKENS,
    Stage.ALERTS: VERDICTS,
}
OUTPUT: Final[dict[Stage, Topic]] = {
    Stage.DECODE: FRAMES,
    Stage.PRUNE_ENCODE: TOKENS,
    Stage.PREFILL: VERDICTS,
    Stage.ALERTS: ALERTS,
}


def all_topics() -> tuple[Topic, ...]:
    """Every topic of an installation, inputs first."""
    flow = (SEGMENTS, FRAMES, TOKENS, VERDICTS, ALERTS)
    return (
        *flow,
        WATCHES,
        *(state_topic(stage) for stage in Stage),
        *(dead_letters(topic) for topic in INPUT.values()),
    )
