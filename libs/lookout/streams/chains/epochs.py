"""Reads the records of cameras' epochs from Kafka: blocks and committed verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Message

from lookout.errors import BadRecordError
from lookout.past.erasures import Fence, read_fence
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.topic_reader import read_topic
from lookout.streams.chains.blocks import check_block
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import (
    TOKENS,
    VERDICTS,
    WireError,
    names_id,
    received,
    tenant_of,
)

#: seconds by which a camera's clock may be ahead of Kafka's before the topics are read from the beginning
_SLACK_S: Final = 600.0
_ENDLESS_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class PastScope:
    """A selection of cameras and windows.

    Attributes:
        camera: Glob that the cameras' ids match.
        since_ms: Windows that end at or after this time, Unix milliseconds.
        until_ms: Windows that end before this time, Unix milliseconds.
        cameras: Several globs, used instead of `camera`; empty: use `camera`.
        tenant: Only the cameras of this tenant; empty: all tenants.
    """

    camera: str = "*"
    since_ms: int = 0
    until_ms: int = _ENDLESS_MS
    cameras: Sequence[str] = ()
    tenant: str = ""

    def is_own(self, tenant: str) -> bool:
        """Whether a record whose field `tenant` has this value belongs to the scope's tenant."""
        return not self.tenant or tenant_of(tenant) == self.tenant

    def covers(self, camera: str) -> bool:
        """Whether the scope includes `camera`."""
        return any(names_id(pattern, camera) for pattern in self.cameras or (self.camera,))

    def includes(self, camera: str, end_ms: int) -> bool:
        """Whether the scope includes a window of `camera` that ends at `end_ms`."""
        return self.covers(camera) and self.since_ms <= end_ms < self.until_ms

    def has(self, verdict: Verdict) -> bool:
        """Whether the scope includes the verdict's window."""
        return self.includes(verdict.camera, verdict.end.ToMilliseconds())


@dataclass(slots=True)
class EpochRecords:
    """The records of one epoch of one camera in Kafka.

    Attributes:
        camera: The camera's id.
        epoch: Number of the epoch.
        blocks: The records of the epoch's stride blocks, by index.
        verdicts: The epoch's committed verdicts, by window.
    """

    camera: str
    epoch: int
    blocks: dict[int, TokensRecord] = field(default_factory=dict)
    verdicts: dict[int, list[Verdict]] = field(default_factory=lambda: defaultdict(list))

    @property
    def stream(self) -> str:
        """The name under which the engine keeps the epoch's KV."""
        return f"{self.camera}/{self.epoch}"

    def end_ms(self, window: int) -> int:
        """Return when a window ends, in Unix milliseconds: the end of its newest block or, without that
        record, the end in a verdict."""
        record = self.blocks.get(window)
        if record is None:
            return self.verdicts[window][0].end.ToMilliseconds()
        return (record.wall_offset_us + record.block.end_us) // 1000


_OUTCOMES = frozenset(Verdict.Outcome.values()) - {Verdict.OUTCOME_UNSPECIFIED}
Complete = Callable[[EpochRecords], bool]


def read_epochs(
    settings: ServiceSettings,
    scope: PastScope,
    reach_s: float,
    complete: Complete = lambda epoch: True,
) -> list[EpochRecords]:
    """Return the epochs of the cameras in scope, with all windows that are needed to compute the windows in
    scope. Blocks and verdicts of erased times are omitted, as if retention had removed them.

    Args:
        settings: How to reach Kafka.
        scope: The cameras and windows.
        reach_s: How many seconds before the scope a chain of windows may have begun.
        complete: Returns whether an epoch has everything that the windows in scope need. If one does not
            (because a camera's clock is ahead, or a chain is longer than `reach_s`), the topics are read from
            the beginning.

    Returns:
        The epochs, sorted by camera and epoch number.

    Raises:
        TimeoutError: A topic cannot be read to its end.
        KafkaException: Kafka reports an error.
    """
    start_ms = max(0, scope.since_ms - round(1000 * (reach_s + _SLACK_S)))
    epochs = _read(settings, scope, start_ms)
    if start_ms and not all(map(complete, epochs)):
        epochs = _read(settings, scope, 0)
    return epochs


def _read(settings: ServiceSettings, scope: PastScope, start_ms: int) -> list[EpochRecords]:
    epochs: dict[tuple[str, int], EpochRecords] = {}
    fence = read_fence(settings)

    def epoch_of(message: TokensRecord | Verdict) -> EpochRecords:
        key = (message.camera, message.epoch)
        return epochs.setdefault(key, EpochRecords(*key))

    for message in read_topic(settings, "replay", VERDICTS.name, start_ms):
        if (verdict := committed_verdict(message)) is None:
            continue
        span = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
        if scope.covers(verdict.camera) and fence.hides(verdict.camera, *span) is None:
            epoch_of(verdict).verdicts[verdict.window].append(verdict)
    for message in read_topic(settings, "replay", TOKENS.name, start_ms):
        record = block_record(message)
        if record is not None and scope.covers(record.camera) and not is_erased(record, fence):
            # If a block has two records, prefill used the first and ignored the second as stale.
            epoch_of(record).blocks.setdefault(record.block.index, record)
    return [epochs[key] for key in sorted(epochs)]


def committed_verdict(message: Message) -> Verdict | None:
    """Return the verdict in a record; None if the record is not a verdict of prefill."""
    try:
        verdict = received(Verdict, record_of(message))
    except WireError:
        return None
    return verdict if verdict.outcome in _OUTCOMES else None


def is_erased(record: TokensRecord, fence: Fence) -> bool:
    """Whether a block overlaps an erased time."""
    offset, block = record.wall_offset_us, record.block
    return fence.hides(record.camera, offset + block.start_us, offset + block.end_us) is not None


def block_record(message: Message) -> TokensRecord | None:
    """Return the parsed and checked record of a block; None for events, and for records that prefill rejects
    as dead letters."""
    try:
        record = received(TokensRecord, record_of(message))
        if not record.HasField("block"):
            return None
        check_block(record.block)
    except (WireError, BadRecordError):
        return None
    return record
