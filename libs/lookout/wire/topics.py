"""The topic table: the one place that defines the topics and their configuration.

The chart, the local fleet, every service's start-up check and the docs are derived from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lookout.wire.limits import JOB_S
from lookout.wire.prefix import CANARY, IS_CANARY, prefixed

MAX_SEGMENT_BYTES: Final = 16 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 17 * 1024 * 1024  # a segment of the largest size, with its headers
HOUR_MS: Final = 3_600_000
#: id of the watch for cameras that are offline; the model is not asked its question
CAMERA_OFFLINE: Final = "camera-offline"
#: watch id of camera incidents, which decode opens; the model is asked no question for it
CAMERA_HEALTH: Final = "camera-health"
#: watch id and camera id of scheduled reports, which are about all cameras of a tenant
SHIFT_REPORT: Final = "shift-report"
EVERY_CAMERA: Final = "*"
#: how far in the future a watch's version may begin; compaction keeps the previous version at least that long
AHEAD_MS: Final = 7 * 24 * HOUR_MS

#: maximum compaction delay of state topics; short, because a takeover also reads what is not compacted yet
STATE_COMPACT_MS: Final = 2 * 60_000


class Stage(StrEnum):
    """The stages of the pipeline, which name services, consumer groups and state topics."""

    DECODE = "decode"
    PRUNE_ENCODE = "prune-encode"
    PREFILL = "prefill"
    ALERTS = "alerts"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    `pipeline` topics share one partition count, because each stage writes to the partition number from which
    it read. `lookout topics grow` adds partitions to the topics of cameras. `retention_ms` None: the topic is
    compacted, so each key's newest value stays for ever. `broker_time`: a record's age counts from its
    arrival at the broker, not from its producer's time stamp. A compacted topic keeps replaced values for at
    least `keep_replaced_ms` and at most `compact_within_ms`.
    """

    name: str
    value: str
    pipeline: bool = True
    retention_ms: int | None = 24 * HOUR_MS
    max_message_bytes: int = 1024 * 1024
    broker_time: bool = False
    keep_replaced_ms: int = 0
    compact_within_ms: int = 0

    @property
    def compacted(self) -> bool:
        """Whether the topic is compacted, that is, a table with the newest value of each key."""
        return self.retention_ms is None

    def config(self) -> dict[str, str]:
        """Return the Kafka settings of the topic."""
        cleanup = (
            {"cleanup.policy": "compact"}
            if self.retention_ms is None
            else {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}
        )
        # The broker checks the limit after decompression, so it rejects a small batch that decompresses to a
        # large one. Footage does not compress, and Lookout's own records are not compressed.
        settings = {
            **cleanup,
            "max.message.bytes": str(self.max_message_bytes),
            "compression.type": "uncompressed",
        }
        if self.broker_time:
            settings["message.timestamp.type"] = "LogAppendTime"
        if self.keep_replaced_ms:
            settings["min.compaction.lag.ms"] = str(self.keep_replaced_ms)
        if self.compact_within_ms:
            # Kafka never compacts the active log segment, so the segment must also be rolled in time.
            settings["segment.ms"] = settings["max.compaction.lag.ms"] = str(self.compact_within_ms)
            settings["min.cleanable.dirty.ratio"] = "0.1"
            # Transaction markers and tombstones are removed equally soon; by default they stay for a day.
            settings["delete.retention.ms"] = str(self.compact_within_ms)
        return settings

    def tiered(self, local_hours: float) -> dict[str, str]:
        """Return the Kafka settings of a topic whose older records are in the broker's remote storage
        (KIP-405).

        Args:
            local_hours: Hours for which records also stay on the broker's disk.

        Raises:
            ValueError: The topic is compacted, which Kafka does not tier.
        """
        if self.compacted:
            raise ValueError(f"{self.name} is compacted, so it cannot have tiered storage")
        return {
            "remote.storage.enable": "true",
            "local.retention.ms": str(round(local_hours * HOUR_MS)),
        }

    def complaints(self, actual: Mapping[str, str]) -> list[str]:
        """Return one phrase for each of the broker's settings that is wrong for this topic. Retention is not
        checked, because it is the operator's choice.
        """
        config = self.config()
        wrong = []
        if self.compacted != ("compact" in actual.get("cleanup.policy", "")):
            wrong.append("cleanup.policy")
        if self.broker_time and actual.get("message.timestamp.type") != config["message.timestamp.type"]:
            wrong.append("message.timestamp.type")
        if actual.get("compression.type") != config["compression.type"]:
            wrong.append("compression.type")
        least = ("max.message.bytes", "min.compaction.lag.ms")
        wrong += [key for key in least if int(actual.get(key, 0)) < int(config.get(key, 0))]
        upper = ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms")
        wrong += [key for key in upper if key in config and int(actual.get(key, 1 << 62)) > int(config[key])]
        return [f"{self.name} {key}={actual.get(key, '')}, must be {config[key]}" for key in wrong]


SEGMENTS: Final = Topic(
    prefixed("camera.segments.v1"),
    "container bytes, or a URI (text/uri-list)",
    max_message_bytes=MAX_MESSAGE_BYTES,
    broker_time=True,  # with producer time, retention would remove unread records that have old time stamps
)
FRAMES: Final = Topic(prefixed("frames.v1"), "lookout.v1.FramesRecord")


def _tokens(mark: str) -> Topic:
    return Topic(prefixed(f"{mark}tokens.v1"), "lookout.v1.TokensRecord")


def _verdicts(mark: str) -> Topic:
    return Topic(
        prefixed(f"{mark}verdicts.v1"),
        "CloudEvents, lookout.v1.Verdict as JSON",
        retention_ms=7 * 24 * HOUR_MS,
    )


#: prefix of the topics for this process's tokens and verdicts
_MARK: Final = f"{CANARY}." if IS_CANARY else ""
TOKENS: Final = _tokens(_MARK)
VERDICTS: Final = _verdicts(_MARK)
#: verdicts of a canary, which only the comparison reads
CANARY_VERDICTS: Final = _verdicts(f"{CANARY}.")
ALERTS: Final = Topic(
    prefixed("alerts.v1"), "CloudEvents, lookout.v1.Alert as JSON", retention_ms=30 * 24 * HOUR_MS
)
WATCHES: Final = Topic(
    prefixed("watches.v1"),
    "lookout.v1.Watch as JSON",
    pipeline=False,
    retention_ms=None,
    broker_time=True,
    keep_replaced_ms=AHEAD_MS,
)
#: cameras that agents pull; cameras that publish their own segments need no record
CAMERAS: Final = Topic(
    prefixed("cameras.v1"), "lookout.v1.Camera as JSON", pipeline=False, retention_ms=None, broker_time=True
)

#: erasures, and which services have carried them out; kept for ever, because a pod may return with an old
#: disk
ERASURES: Final = Topic(
    prefixed("erasures.v1"), "lookout.v1.Erasure as JSON", pipeline=False, retention_ms=None, broker_time=True
)

#: people's labels of incidents; erasing a camera removes its labels, so replaced values are removed soon
LABELS: Final = Topic(
    prefixed("labels.v1"),
    "lookout.v1.Label as JSON",
    pipeline=False,
    retention_ms=None,
    broker_time=True,
    compact_within_ms=24 * HOUR_MS,
)

#: people's actions on incidents; kept as long as the gateway keeps incidents
ACTIONS: Final = Topic(
    prefixed("incident.actions.v1"),
    "lookout.v1.IncidentAction as JSON",
    pipeline=False,
    retention_ms=400 * 24 * HOUR_MS,
    broker_time=True,
)
#: tokens of the gateway; a null value revokes a token
ACCESS: Final = Topic(
    prefixed("access.v1"), "lookout.v1.ApiToken as JSON", pipeline=False, retention_ms=None, broker_time=True
)
#: audit log: who changed or viewed what
AUDIT: Final = Topic(
    prefixed("audit.v1"),
    "lookout.v1.AuditEntry as JSON",
    pipeline=False,
    retention_ms=400 * 24 * HOUR_MS,
    broker_time=True,
)

#: notifications: who is told of incidents, and how
NOTIFICATIONS: Final = Topic(
    prefixed("notifications.v1"),
    "lookout.v1.Notification as JSON",
    pipeline=False,
    retention_ms=None,
    broker_time=True,
)

#: privacy masks of cameras
MASKS: Final = Topic(
    prefixed("masks.v1"),
    "lookout.v1.CameraMasks as JSON",
    pipeline=False,
    retention_ms=None,
    broker_time=True,
)

#: recording jobs; a job's newest record is in force
RECORDINGS: Final = Topic(
    prefixed("recordings.v1"), "lookout.v1.RecordingJob as JSON", retention_ms=None, broker_time=True
)
RECORDING_PARTS: Final = Topic(
    prefixed("recording.parts.v1"), "lookout.v1.RecordingPart", retention_ms=1000 * JOB_S
)
RECORDING_RESULTS: Final = Topic(
    prefixed("recording.results.v1"), "lookout.v1.RecordingOutcome", retention_ms=2 * 1000 * JOB_S
)
ANSWERS: Final = Topic(
    prefixed("answers.v1"),
    "lookout.v1.RecordingAnswers as JSON",
    retention_ms=None,
    max_message_bytes=MAX_MESSAGE_BYTES,
)


def state_topic(service: str) -> Topic:
    """Return the compacted topic of one service's checkpoints (lookout.v1.Checkpoint)."""
    return Topic(
        prefixed(f"{service}.state.v1"),
        "lookout.v1.Checkpoint",
        retention_ms=None,
        compact_within_ms=STATE_COMPACT_MS,
    )


def dead_letters(source: Topic) -> Topic:
    """Return the topic for records of `source` that cannot be processed: the original bytes, with the reason
    in headers."""
    return Topic(
        f"{source.name}.dlq",
        "original bytes",
        retention_ms=7 * 24 * HOUR_MS,
        max_message_bytes=source.max_message_bytes,
    )


@dataclass(frozen=True, slots=True)
class Flow:
    """The topics that a service reads and writes.

    Several services may read one topic, each in its own consumer group, named after the service.

    Attributes:
        name: Name of the service; with the installation's prefix also the name of its consumer group and of
            its state topic.
        source: The topic that the service reads.
        outputs: Topics that the service writes; empty if its effect is outside Kafka.
        letters: Name, without the prefix, of the topic to whose dead letters the service writes; empty: its
            source.
    """

    name: str
    source: Topic
    outputs: tuple[Topic, ...] = ()
    letters: str = ""

    @property
    def group(self) -> str:
        """Name of the service's consumer group."""
        return prefixed(self.name)

    @property
    def state(self) -> Topic:
        """Topic of the service's checkpoints."""
        return state_topic(self.name)

    @property
    def dead_letters(self) -> Topic:
        """Topic for records that the service cannot process; the header `lookout-stage` names the service."""
        named = replace(self.source, name=prefixed(self.letters)) if self.letters else self.source
        return dead_letters(named)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All topics of the service."""
        return (self.source, *self.outputs, self.state, self.dead_letters)


_CANARY_PIPELINE: Final[dict[Stage, Flow]] = {
    Stage.PRUNE_ENCODE: Flow(
        f"{CANARY}-{Stage.PRUNE_ENCODE}", FRAMES, (_tokens(f"{CANARY}."),), f"{CANARY}.frames.v1"
    ),
    Stage.PREFILL: Flow(f"{CANARY}-{Stage.PREFILL}", _tokens(f"{CANARY}."), (CANARY_VERDICTS,)),
}
CANARY_STAGES: Final = tuple(flow.name for flow in _CANARY_PIPELINE.values())
"""Names of a canary's services."""

PIPELINE: Final[dict[Stage, Flow]] = {
    Stage.DECODE: Flow(Stage.DECODE, SEGMENTS, (FRAMES, ALERTS)),
    Stage.PRUNE_ENCODE: Flow(Stage.PRUNE_ENCODE, FRAMES, (TOKENS,)),
    Stage.PREFILL: Flow(Stage.PREFILL, TOKENS, (VERDICTS,)),
    Stage.ALERTS: Flow(Stage.ALERTS, VERDICTS, (ALERTS,)),
    **(_CANARY_PIPELINE if IS_CANARY else {}),
}
"""The services of every installation. In a canary's process, prune-encode and prefill are those of the
canary."""

PLAN: Final = Flow("recordings-plan", RECORDINGS, (RECORDING_RESULTS,))
PARTS: Final = Flow("recordings", RECORDING_PARTS, (RECORDING_RESULTS,))
REDUCE: Final = Flow("recordings-reduce", RECORDING_RESULTS, (RECORDING_PARTS, ANSWERS))
RECORDING_FLOWS: Final = (PLAN, PARTS, REDUCE)
"""The services for recording jobs, which only installations that use such jobs run."""

NOTIFY: Final = Flow("notify", ALERTS)
"""The notification service. It also reads people's actions on incidents; only one of its processes works."""


def camera_topics() -> tuple[Topic, ...]:
    """Return the topics whose records belong to a camera, inputs first; partitions are added to all of them
    together. In a canary's process, return only the topics that it writes.

    Partitions are never added to the topics of recordings, because a job's records are in the partition that
    its request chose.
    """
    if IS_CANARY:
        return canary_topics()
    flows = tuple(PIPELINE.values())
    records = dict.fromkeys(topic for flow in flows for topic in (flow.source, *flow.outputs))
    return (*records, *(flow.state for flow in flows), *(flow.dead_letters for flow in flows))


def canary_topics() -> tuple[Topic, ...]:
    """Return the topics that a canary writes."""
    flows = tuple(_CANARY_PIPELINE.values())
    return (
        *(topic for flow in flows for topic in flow.outputs),
        *(flow.state for flow in flows),
        *(flow.dead_letters for flow in flows),
    )


def all_topics() -> tuple[Topic, ...]:
    """Return every topic of an installation, inputs first; in a canary's process, only the topics that it
    writes.
    """
    if IS_CANARY:
        return canary_topics()
    flows = (*PIPELINE.values(), *RECORDING_FLOWS, NOTIFY)
    records = dict.fromkeys(topic for flow in flows for topic in (flow.source, *flow.outputs))
    return (
        *records,
        WATCHES,
        CAMERAS,
        ERASURES,
        LABELS,
        ACTIONS,
        ACCESS,
        AUDIT,
        NOTIFICATIONS,
        MASKS,
        *(flow.state for flow in flows),
        *dict.fromkeys(flow.dead_letters for flow in flows),
    )
