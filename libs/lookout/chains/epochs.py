"""The records of cameras' epochs, read out of Kafka: blocks, events, committed verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from lookout.chains.blocks import check_block
from lookout.erasures import Fence, read_log
from lookout.errors import BadRecordError
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ERASURES, TOKENS, VERDICTS, WireError, check_epoch, from_bytes, from_json
from lookout.worker import ServiceSettings
from lookout.worker.topic_reader import BEGINNING, End, TopicReader

_READ_S: Final = 60.0
#: how far clocks of cameras may be ahead of Kafka's before the topics are read whole
_SLACK_S: Final = 600.0
_ENDLESS_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class PastScope:
    """Cameras that match a glob, and windows that end in [since_ms, until_ms) (Unix milliseconds)."""

    camera: str = "*"
    since_ms: int = 0
    until_ms: int = _ENDLESS_MS

    def includes(self, camera: str, end_ms: int) -> bool:
        """Whether a window of `camera` that ends at `end_ms` is one of them."""
        return fnmatchcase(camera, self.camera) and self.since_ms <= end_ms < self.until_ms

    def has(self, verdict: Verdict) -> bool:
        """Whether the verdict is about one of them."""
        return self.includes(verdict.camera, verdict.end.ToMilliseconds())


@dataclass(slots=True)
class EpochRecords:
    """What Kafka has of one epoch of one camera.

    Attributes:
        blocks: Its stride blocks by index.
        verdicts: Its committed outcomes by window.
    """

    camera: str
    epoch: int
    blocks: dict[int, TokensRecord] = field(default_factory=dict)
    verdicts: dict[int, list[Verdict]] = field(default_factory=lambda: defaultdict(list))

    @property
    def stream(self) -> str:
        """The engine's name of the epoch."""
        return f"{self.camera}/{self.epoch}"

    def end_ms(self, window: int) -> int:
        """Unix milliseconds at which a window ends whose newest block is at hand."""
        record = self.blocks[window]
        return (record.wall_offset_us + record.block.end_us) // 1000


Complete = Callable[[EpochRecords], bool]


def read_epochs(
    settings: ServiceSettings,
    scope: PastScope,
    reach_s: float,
    complete: Complete = lambda epoch: True,
) -> list[EpochRecords]:
    """The epochs of the cameras in scope, with all windows that chains of those in scope may need. Blocks and
    verdicts of an erased time are left out, as those that retention has removed.

    Args:
        settings: How Kafka is reached.
        scope: Which windows.
        reach_s: How far before the scope a chain of windows may begin, seconds.
        complete: Whether all is there that the windows in scope need. Where it is not (a camera's clock is
            ahead, or chains are longer than `reach_s`), the topics are read whole.

    Returns:
        Rising by camera and epoch.

    Raises:
        TimeoutError: A topic cannot be read to its end.
        KafkaException: Kafka refuses.
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

    for message in _messages(settings, VERDICTS.name, start_ms):
        try:
            verdict = from_json(message.value() or b"", Verdict)
        except WireError:
            continue  # not written by prefill
        span = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
        if fnmatchcase(verdict.camera, scope.camera) and fence.hides(verdict.camera, *span) is None:
            epoch_of(verdict).verdicts[verdict.window].append(verdict)
    for message in _messages(settings, TOKENS.name, start_ms):
        record = _block_record(message)
        if record is not None and fnmatchcase(record.camera, scope.camera) and not _is_erased(record, fence):
            # Of two records for one block the first was decided; prefill leaves the other out as stale.
            epoch_of(record).blocks.setdefault(record.block.index, record)
    return [epochs[key] for key in sorted(epochs)]


def read_fence(settings: ServiceSettings) -> Fence:
    """What was erased, as Kafka says it now: nothing where a fleet of an earlier release has no such topic.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka refuses.
    """
    messages = _messages(settings, ERASURES.name, 0)
    try:
        log = read_log((message.key() or b"", message.value()) for message in messages)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return Fence()
    return Fence(log.erasures.values())


def _is_erased(record: TokensRecord, fence: Fence) -> bool:
    offset, block = record.wall_offset_us, record.block
    return fence.hides(record.camera, offset + block.start_us, offset + block.end_us) is not None


def _block_record(message: Message) -> TokensRecord | None:
    """The record of a block; None for events, and for what prefill puts into its dead letters."""
    try:
        record = from_bytes(message.value() or b"", TokensRecord)
        check_epoch(record.epoch, message.timestamp()[1])
        if not record.HasField("block") or record.camera.encode() != message.key():
            return None
        check_block(record.block)
    except (WireError, BadRecordError):
        return None
    return record


def _messages(settings: ServiceSettings, topic: str, start_ms: int) -> Iterator[Message]:
    """The committed records of a topic from a time (Unix milliseconds; 0: all) up to its end now."""
    reader = TopicReader(settings, "replay", options={"auto.offset.reset": "earliest"})
    try:
        partitions = reader.partitions(topic, _READ_S)
        starts = reader.at(topic, partitions, start_ms, _READ_S) if start_ms else {}
        reader.read_from(topic, {number: starts.get(number, BEGINNING) for number in partitions})
        unread = set(partitions)
        while unread:
            message = reader.next(_READ_S)
            if message is None:
                raise TimeoutError(f"{topic} cannot be read to its end: {_READ_S:g} s without a record")
            if isinstance(message, End):
                unread.discard(message.partition)
            else:
                yield message
    finally:
        reader.close()
