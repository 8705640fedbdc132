"""What Kafka refused, record by record: each record is gone after a bounded number of tries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from lookout.runtime.worker.records import DeadLetter, Output, Record, Result
from lookout.text import clean
from lookout.wire import MAX_MESSAGE_BYTES, all_topics, headers as names
from lookout.wire.headers import Headers

DETAIL_CHARS: Final = 4000
#: of a record batch around one record: its own header, lengths as varints, the producer's id
_BATCH_BYTES = 256
_HEADER_BYTES = 12
_LIMITS = {topic.name: topic.max_message_bytes for topic in all_topics()}
#: bytes of a checkpoint: of a record of a state topic, less its key and its config digest
STATE_BYTES: Final = 1024 * 1024 - 4096


class LetterContent(IntEnum):
    """How much of the original record its dead letter holds; each refusal by Kafka leaves one part less."""

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
    """What is known about one record. `reason`: an output of it was refused, so it becomes a dead letter;
    `bare`: so were outputs alongside the dead letter; `kept`: of the dead letter.
    """

    reason: DeadLetter | None = None
    bare: bool = False
    kept: LetterContent = LetterContent.ALL


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records of one camera that were left out on purpose. `first` and `last` are offsets; records between
    them may be of other cameras, or may have been processed.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int


class Refusals:
    """Refusals by partition and offset, until the record's offset is committed.

    Written by the thread that runs transactions, read by the polling thread: single dictionary calls.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Refusal] = {}
        self._ticks: set[tuple[int, str]] = set()

    def of(self, record: Record) -> Refusal | None:
        """What was refused of `record` before."""
        return self._known.get((record.partition, record.offset))

    def output_refused(self, record: Record, topic: str, why: str) -> None:
        """An output of `record` is too large, or otherwise will never be taken."""
        before = self.of(record) or Refusal()
        if before.reason is None:
            after = replace(before, reason=DeadLetter("output-refused", f"{topic}: {why}"))
        else:
            after = replace(before, bare=True)
        self._known[record.partition, record.offset] = after

    def dead_letter_refused(self, record: Record, kept: LetterContent) -> None:
        """A dead letter that held `kept` of the record was refused."""
        before = self.of(record) or Refusal()
        content = LetterContent(min(kept + 1, LetterContent.NOTHING))
        self._known[record.partition, record.offset] = replace(before, kept=max(before.kept, content))

    def tick_refused(self, partition: int, camera: str) -> None:
        """What a tick of `camera` gave will never be taken."""
        self._ticks.add((partition, camera))

    def may_tick(self, partition: int, camera: str) -> bool:
        """Whether ticks of `camera` are worth a try."""
        return (partition, camera) not in self._ticks

    def committed(self, record: Record) -> None:
        """Forget the record: its offset is committed."""
        self._known.pop((record.partition, record.offset), None)
        self._ticks.discard((record.partition, record.camera))

    def forget(self, partition: int) -> None:
        """The partition belongs to another worker."""
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
    """The record as it came, as far as it fits, with the reason and its place in headers.

    Args:
        record: the record.
        why: the reason.
        kept: at most so much of it (Kafka refused more before).
        stage: the stage that refuses it.
        topic: the topic of dead letters.
        limit: bytes of a record that `topic` takes.

    Returns:
        The output and how much of the record it holds; None where nothing of it can be written.
    """
    while kept < LetterContent.NOTHING:
        output = _dead_letter(stage, topic, record, why, kept)
        if size_of(output) <= limit:
            return output, kept
        kept = LetterContent(kept + 1)
    return None, LetterContent.NOTHING


def quota_letter(left_out: LeftOut, camera: str, detail: str, *, stage: str, topic: str) -> Output:
    """One dead letter, without their bytes, for records that a camera sent over its quota.

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
    """Which record of a result is too large for its topic; None where all fit."""
    for output in result.outputs:
        limit = _LIMITS.get(output.topic, MAX_MESSAGE_BYTES)
        # Headers are far smaller than half of a limit: only a large value is worth the exact count.
        if len(output.value or b"") > limit // 2 and (size := size_of(output)) > limit:
            return f"{output.topic}: {size} bytes, {limit} at most"
    if result.checkpoint is not None and (size := result.checkpoint.ByteSize()) > STATE_BYTES:
        return f"the checkpoint: {size} bytes, {STATE_BYTES} at most"
    return None


def size_of(output: Output) -> int:
    """Bytes of an output in a record batch of its own; never too few."""
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
