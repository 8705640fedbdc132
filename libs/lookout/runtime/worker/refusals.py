"""Remembers which outputs Kafka has rejected, by input record, so that each record needs only a limited
number of attempts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from lookout.runtime.worker.records import DeadLetter, Output, Record, Result
from lookout.text import clean
from lookout.wire import MAX_MESSAGE_BYTES, all_topics, headers as names
from lookout.wire.headers import Headers

DETAIL_CHARS: Final = 4000
#: maximum overhead of a batch with one record, in bytes: the batch's header, lengths, and the producer's id
_BATCH_BYTES = 256
_HEADER_BYTES = 12
_LIMITS = {topic.name: topic.max_message_bytes for topic in all_topics()}
#: maximum bytes of a checkpoint: the maximum of a state topic's record, minus room for the key and the config
#: digest
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
        """The omitted parts, as listed in a dead letter's header."""
        return ",".join(("headers", "value", "key")[: self.value])


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Kafka has rejected of the outputs of one record.

    Attributes:
        reason: Why the record becomes a dead letter; None: only its dead letter was rejected.
        bare: Whether outputs that were written with the dead letter were also rejected, so that it is written
            alone.
        kept: How much of the record the dead letter may contain.
    """

    reason: DeadLetter | None = None
    bare: bool = False
    kept: LetterContent = LetterContent.ALL


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records of one camera that were skipped on purpose.

    Attributes:
        topic: The records' topic.
        partition: Their partition.
        first: Offset of the first skipped record.
        last: Offset of the last skipped record. Records between them may be other cameras', or may have been
            processed.
        count: Number of skipped records.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int


class Refusals:
    """Stores rejections by partition and offset until the record's offset is committed.

    The thread that runs transactions writes them, and the polling thread reads them. Each access is a single
    dictionary operation, so no lock is needed.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Refusal] = {}
        self._ticks: set[tuple[int, str]] = set()

    def of(self, record: Record) -> Refusal | None:
        """Return what Kafka has rejected of `record`; None: nothing."""
        return self._known.get((record.partition, record.offset))

    def output_refused(self, record: Record, topic: str, why: str) -> None:
        """Note that Kafka will never accept an output of `record`, because the output is too large or
        invalid."""
        before = self.of(record) or Refusal()
        if before.reason is None:
            after = replace(before, reason=DeadLetter("output-refused", f"{topic}: {why}"))
        else:
            after = replace(before, bare=True)
        self._known[record.partition, record.offset] = after

    def dead_letter_refused(self, record: Record, kept: LetterContent) -> None:
        """Note that Kafka rejected a dead letter that contained `kept` of the record."""
        before = self.of(record) or Refusal()
        content = LetterContent(min(kept + 1, LetterContent.NOTHING))
        self._known[record.partition, record.offset] = replace(before, kept=max(before.kept, content))

    def tick_refused(self, partition: int, camera: str) -> None:
        """Note that Kafka will never accept an output of a tick of `camera`."""
        self._ticks.add((partition, camera))

    def may_tick(self, partition: int, camera: str) -> bool:
        """Whether to tick `camera`; False after an output of a tick was rejected, until a record is
        committed."""
        return (partition, camera) not in self._ticks

    def committed(self, record: Record) -> None:
        """Drop a record's entry, because its offset is committed."""
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
    """Make a dead letter: as much of the original record as fits, with the reason and the origin in headers.

    Args:
        record: the record.
        why: the reason.
        kept: how much of the record the dead letter may contain, because Kafka has rejected more.
        stage: the stage that rejects the record.
        topic: the topic of dead letters.
        limit: maximum bytes of a record in `topic`.

    Returns:
        The output, and how much of the record it contains; the output is None if even an empty dead letter is
        too large.
    """
    while kept < LetterContent.NOTHING:
        output = _dead_letter(stage, topic, record, why, kept)
        if size_of(output) <= limit:
            return output, kept
        kept = LetterContent(kept + 1)
    return None, LetterContent.NOTHING


def quota_letter(left_out: LeftOut, camera: str, detail: str, *, stage: str, topic: str) -> Output:
    """Make one dead letter for all records that a camera sent over its quota. It does not contain their
    values.

    Args:
        left_out: the skipped records.
        camera: the records' key.
        detail: a sentence about the reason.
        stage: the stage that skipped the records.
        topic: the topic of dead letters.
    """
    first = Record(left_out.topic, left_out.partition, left_out.first, camera, b"")
    letter = _dead_letter(stage, topic, first, DeadLetter(names.QUOTA, detail), LetterContent.WITHOUT_VALUE)
    counts = {names.SOURCE_LAST_OFFSET: str(left_out.last), names.RECORDS: str(left_out.count)}
    return replace(letter, headers=(*letter.headers, *names.encode(counts)))


def oversize(result: Result) -> str | None:
    """Return a sentence about the record of a result that is too large for its topic; None if all records
    fit."""
    for output in result.outputs:
        limit = _LIMITS.get(output.topic, MAX_MESSAGE_BYTES)
        # Headers are far smaller than half the limit, so the exact size is computed only for a large value.
        if len(output.value or b"") > limit // 2 and (size := size_of(output)) > limit:
            return f"a record for {output.topic} has {size} bytes; the limit is {limit}"
    if result.checkpoint is not None and (size := result.checkpoint.ByteSize()) > STATE_BYTES:
        return f"the checkpoint has {size} bytes; the limit is {STATE_BYTES}"
    return None


def size_of(output: Output) -> int:
    """Return an upper bound on the bytes of an output that is alone in a record batch."""
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
