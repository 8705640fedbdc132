"""Remembers what Kafka rejected, record by record, so that each record is done after a bounded number of
attempts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from lookout.runtime.worker.records import DeadLetter, Output, Record, Result
from lookout.text import clean
from lookout.wire import MAX_MESSAGE_BYTES, all_topics, headers as names
from lookout.wire.headers import Headers

DETAIL_CHARS: Final = 4000
#: overhead of a record batch with one record: its header, lengths as varints, the producer's id
_BATCH_BYTES = 256
_HEADER_BYTES = 12
_LIMITS = {topic.name: topic.max_message_bytes for topic in all_topics()}
#: largest checkpoint in bytes: a state topic's largest record, less room for the key and the config digest
STATE_BYTES: Final = 1024 * 1024 - 4096


class LetterContent(IntEnum):
    """How much of the original record its dead letter holds; each rejection by Kafka removes one more
    part."""

    ALL = 0
    WITHOUT_HEADERS = 1
    WITHOUT_VALUE = 2
    WITHOUT_KEY = 3
    NOTHING = 4

    @property
    def dropped(self) -> str:
        """The parts that are left out, as the header of a dead letter names them."""
        return ",".join(("headers", "value", "key")[: self.value])


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Kafka rejected of one record.

    `reason`: an output was rejected, so the record becomes a dead letter. `bare`: outputs written along with
    the dead letter were rejected too. `kept`: how much of the record the dead letter may hold.
    """

    reason: DeadLetter | None = None
    bare: bool = False
    kept: LetterContent = LetterContent.ALL


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records of one camera that were left out on purpose.

    `first` and `last` are offsets. Records between them may be of other cameras, or may have been processed.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int


class Refusals:
    """Rejections by partition and offset, kept until the record's offset is committed.

    The thread that runs transactions writes them and the polling thread reads them, with single dictionary
    operations.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Refusal] = {}
        self._ticks: set[tuple[int, str]] = set()

    def of(self, record: Record) -> Refusal | None:
        """Return what was rejected of `record` before."""
        return self._known.get((record.partition, record.offset))

    def output_refused(self, record: Record, topic: str, why: str) -> None:
        """Note that Kafka will never take an output of `record`, because it is too large or invalid."""
        before = self.of(record) or Refusal()
        if before.reason is None:
            after = replace(before, reason=DeadLetter("output-refused", f"{topic}: {why}"))
        else:
            after = replace(before, bare=True)
        self._known[record.partition, record.offset] = after

    def dead_letter_refused(self, record: Record, kept: LetterContent) -> None:
        """Note that a dead letter with `kept` of the record was rejected."""
        before = self.of(record) or Refusal()
        content = LetterContent(min(kept + 1, LetterContent.NOTHING))
        self._known[record.partition, record.offset] = replace(before, kept=max(before.kept, content))

    def tick_refused(self, partition: int, camera: str) -> None:
        """Note that Kafka will never take an output of a tick of `camera`."""
        self._ticks.add((partition, camera))

    def may_tick(self, partition: int, camera: str) -> bool:
        """Whether to tick `camera`; false after the output of a tick was rejected."""
        return (partition, camera) not in self._ticks

    def committed(self, record: Record) -> None:
        """Drop the entry: the record's offset is committed."""
        self._known.pop((record.partition, record.offset), None)
        self._ticks.discard((record.partition, record.camera))

    def forget(self, partition: int) -> None:
        """Drop the entries of a partition that belongs to another worker now."""
        self._known = {key: refusal for key, refusal in self._known.items() if key[0] != partition}
        self._ticks = {tick for tick in self._ticks if tick[0] != partition}


def dead_letter(
    record: Record,
    why: DeadLetter,
    kept: LetterContent = LetterContent.ALL,
    *,
    stage: str,
    topic: str,
    limit: int,
) -> tuple[Output | None, LetterContent]:
    """Make a dead letter: the original record as far as it fits, with its reason and origin in headers.

    Args:
        record: the record.
        why: the reason.
        kept: the most that may be kept of the record (Kafka rejected more before).
        stage: the stage that rejects it.
        topic: the topic of dead letters.
        limit: largest record that `topic` takes, in bytes.

    Returns:
        The output and how much of the record it holds; None if not even an empty letter fits.
    """
    while kept < LetterContent.NOTHING:
        output = _dead_letter(stage, topic, record, why, kept)
        if size_of(output) <= limit:
            return output, kept
        kept = LetterContent(kept + 1)
    return None, LetterContent.NOTHING


def quota_letter(left_out: LeftOut, camera: str, detail: str, *, stage: str, topic: str) -> Output:
    """Make one dead letter, without their bytes, for records that a camera sent over its quota.

    Args:
        left_out: the records.
        camera: their key.
        detail: one sentence for people.
        stage: the stage that left them out.
        topic: the topic of dead letters.
    """
    first = Record(left_out.topic, left_out.partition, left_out.first, camera, b"")
    letter = _dead_letter(stage, topic, first, DeadLetter(names.QUOTA, detail), LetterContent.WITHOUT_VALUE)
    counts = {names.SOURCE_LAST_OFFSET: str(left_out.last), names.RECORDS: str(left_out.count)}
    return replace(letter, headers=(*letter.headers, *names.encode(counts)))


def oversize(result: Result) -> str | None:
    """Return which record of a result is too large for its topic; None if all fit."""
    for output in result.outputs:
        limit = _LIMITS.get(output.topic, MAX_MESSAGE_BYTES)
        # Headers are far smaller than half the limit, so the exact size is computed only for a large value.
        if len(output.value or b"") > limit // 2 and (size := size_of(output)) > limit:
            return f"{output.topic}: {size} bytes, {limit} at most"
    if result.checkpoint is not None and (size := result.checkpoint.ByteSize()) > STATE_BYTES:
        return f"the checkpoint: {size} bytes, {STATE_BYTES} at most"
    return None


def size_of(output: Output) -> int:
    """Return an upper bound on the bytes of an output in a record batch of its own."""
    size = _BATCH_BYTES + len(output.key.encode()) + len(output.value or b"")
    return size + sum(len(name.encode()) + len(value) + _HEADER_BYTES for name, value in output.headers)


def _dead_letter(stage: str, topic: str, record: Record, why: DeadLetter, kept: LetterContent) -> Output:
    facts = {
        names.REASON: why.reason,
        names.DETAIL: clean(why.detail, DETAIL_CHARS),
        names.STAGE: stage,
        names.SOURCE_TOPIC: record.topic,
        names.SOURCE_PARTITION: str(record.partition),
        names.SOURCE_OFFSET: str(record.offset),
    }
    if record.raw_key and kept < LetterContent.WITHOUT_KEY:
        facts[names.SOURCE_KEY] = record.raw_key.hex()
    if kept is not LetterContent.ALL:
        facts[names.DROPPED] = kept.dropped
    headers: Headers = names.encode(facts)
    if kept is LetterContent.ALL:
        headers = (*record.headers, *headers)
    value = record.value if kept < LetterContent.WITHOUT_VALUE else None
    return Output(topic, record.camera if kept < LetterContent.WITHOUT_KEY else "", value, headers)
