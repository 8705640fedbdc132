"""Reads what Kafka still has of a camera's footage: frames records, and the segments that they reference."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from confluent_kafka import KafkaException

from lookout.errors import BadRecordError, RecordsGoneError, TransientError
from lookout.runtime.net.fetch import UriFetcher, uri_of
from lookout.runtime.observe import logs
from lookout.runtime.worker import FetchSettings, Record
from lookout.runtime.worker.record_reader import RecordReader, record_of
from lookout.runtime.worker.topic_reader import End, TopicReader
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.video.motion.grids import Mask, unpack_mask
from lookout.video.segments.types import ClipSegment
from lookout.wire import FRAMES, SEGMENTS, TOKENS, VERDICTS, WireError, headers, received

#: maximum number of requests that read from Kafka at the same time
_READERS: Final = 4
_ANSWER_S: Final = 10.0
#: how long before its capture time footage may reach Kafka, if the camera's clock is ahead
_LONGEST_MS: Final = 86_400_000
#: how long after footage a stage may write about it, if no record of about that time is known
_LATE_MS: Final = 600_000
#: the same, if a record of about that time is known
_NEAR_MS: Final = 180_000
#: how long before the expected time to start reading. The values are tried in this order, because decode may
#: have been less late then
_EARLIER_MS: Final = (15_000, _LATE_MS)
_EARLIER_ANYWHERE_MS: Final = (15_000, _LATE_MS, _LONGEST_MS)

#: how much the services' clocks may differ
_CLOCKS_MS: Final = 60_000

_Reader = TypeVar("_Reader", TopicReader, RecordReader)


@dataclass(frozen=True, slots=True)
class FilmedSegment:
    """A frames record with a segment.

    Attributes:
        place: The record's partition and offset in frames.v1.
        record: The record.
        written_ms: When decode wrote the record, Unix milliseconds.
    """

    place: tuple[int, int]
    record: FramesRecord
    written_ms: int = 0

    @property
    def start_us(self) -> int:
        """The segment's begin in Unix microseconds."""
        return self.record.segment.start_us + self.record.wall_offset_us

    @property
    def end_us(self) -> int:
        """The segment's end in Unix microseconds."""
        return self.record.segment.end_us + self.record.wall_offset_us


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of frames.v1 by Kafka's time, Unix milliseconds. Partition None: all partitions."""

    begin_ms: int
    stop_ms: int
    partition: int | None = None


class Footage:
    """Reads footage from Kafka. Thread-safe.

    Args:
        settings: How to reach Kafka and the segments' hosts.
    """

    def __init__(self, settings: FetchSettings) -> None:
        options = {"auto.offset.reset": "earliest"}
        self._readers: queue.LifoQueue[TopicReader] = queue.LifoQueue()
        self._segments: queue.LifoQueue[RecordReader] = queue.LifoQueue()
        for _ in range(_READERS):
            self._readers.put(TopicReader(settings, "media", options=options))
            self._segments.put(RecordReader(settings))
        self._uris = UriFetcher(
            settings.uri_schemes,
            settings.uri_hosts,
            settings.uri_networks,
            timeout_s=settings.uri_timeout_s,
        )

    def close(self) -> None:
        """Close the connections."""
        for _ in range(_READERS):
            self._readers.get().close()
            self._segments.get().close()

    def at(self, camera: str, ref: RecordRef) -> FilmedSegment | None:
        """Return a camera's frames record at a place in frames.v1; None if Kafka no longer has it."""
        if ref.topic != FRAMES.name:
            return None
        with self._taken(self._segments) as reader:
            try:
                records = reader.read(FRAMES.name, ref.partition, [ref.offset], _ANSWER_S)
            except RecordsGoneError:
                return None
        filmed = filmed_segment(records[0])
        # If the topic was deleted and created again, another camera's record may be at this offset.
        return filmed if filmed is not None and filmed.record.camera == camera else None

    def between(
        self, camera: str, from_us: int, to_us: int, near: RecordRef | None = None
    ) -> list[FilmedSegment]:
        """Return the segments that a camera filmed in a time range, sorted by epoch and stream time.

        Args:
            camera: The camera's id.
            from_us: Begin of the range, Unix microseconds.
            to_us: End of the range, excluded.
            near: A frames record or verdict of about this time. None: look segments up by Kafka's record
                time, which does not find those that decode wrote more than ten minutes late.

        Raises:
            TransientError: Kafka does not answer in time.
        """
        where = self._where(camera, from_us, to_us, near)
        segments: dict[tuple[int, int], FilmedSegment] = {}
        with self._taken(self._readers) as reader:
            for earlier_ms in _EARLIER_MS if where.partition is not None else _EARLIER_ANYWHERE_MS:
                filmed_segments = list(self._read(reader, camera, where, earlier_ms, to_us))
                for filmed in filmed_segments:
                    if filmed.start_us < to_us and filmed.end_us > from_us:
                        segments[filmed.record.epoch, filmed.record.segment.start_us] = filmed
                # A camera's records are in order, so earlier records cannot reach into the range.
                if any(filmed.start_us <= from_us for filmed in filmed_segments):
                    break
        return [segments[key] for key in sorted(segments)]

    def segment(self, filmed: FilmedSegment) -> bytes | None:
        """Return a segment's bytes; None if Kafka or the segment's host no longer has them.

        Raises:
            TransientError: Kafka or the host does not answer.
        """
        ref = filmed.record.segment.segment
        if ref.topic != SEGMENTS.name:
            return None
        with self._taken(self._segments) as reader:
            try:
                record = reader.read(ref.topic, ref.partition, [ref.offset], _ANSWER_S)[0]
            except RecordsGoneError:
                return None
        if record.camera != filmed.record.camera:
            return None
        kind = headers.text(record.headers, headers.CONTENT_TYPE) or ""
        if kind.partition(";")[0].strip().lower() != headers.URI_LIST:
            return record.value
        try:
            return self._uris.fetch(uri_of(record.value))
        except BadRecordError as error:  # the host no longer has the bytes, or may not be fetched from
            logs.get("gateway").info("a segment is not available", camera=record.camera, error=str(error))
            return None

    def computed(self, filmed: FilmedSegment, row: int) -> Mask | None:
        """Return which merge groups of a sampled picture were kept and encoded; None if no record has this
        information.

        Args:
            filmed: The picture's record.
            row: Index of the picture among the record's frames.

        Returns:
            bool [rows, columns], one per group.

        Raises:
            TransientError: Kafka does not answer in time.
        """
        partition = filmed.place[0]  # a stage writes to the partition that it reads
        since_ms = max(0, filmed.written_ms - _CLOCKS_MS)
        with self._taken(self._readers) as reader:
            start = reader.at(TOKENS.name, [partition], since_ms, _ANSWER_S)[partition]
            if start < 0:
                return None
            reader.read_from(TOKENS.name, {partition: start})
            deadline = time.monotonic() + _ANSWER_S
            while time.monotonic() < deadline:
                message = reader.next(1.0)
                if isinstance(message, End):
                    return None
                if message is not None and message.timestamp()[1] > filmed.written_ms + _LATE_MS:
                    return None
                if message is None or message.key() != filmed.record.camera.encode():
                    continue
                block = _block(record_of(message), filmed)
                # A segment may span several blocks, but each frame is in only one block.
                computed = None if block is None else _computed(block, filmed, row)
                if computed is not None:
                    return computed
        raise TransientError(f"{TOKENS.name} cannot be read in time")

    def clip_segments(self, segments: Sequence[FilmedSegment], max_bytes: int) -> Iterator[ClipSegment]:
        """Yield segments with their bytes until `max_bytes` is reached; skip those whose bytes are gone."""
        size = 0
        for filmed in segments:
            data = self.segment(filmed)
            if data is None:
                continue
            size += len(data)
            if size > max_bytes:
                return
            body = filmed.record.segment
            origin_us = body.start_us - round(body.facts.first_pts * 1e6)
            yield ClipSegment(data, filmed.record.epoch, origin_us, filmed.record.wall_offset_us)

    def _where(self, camera: str, from_us: int, to_us: int, near: RecordRef | None) -> _Range:
        """Return the estimated place of a range's records, based on a record of about that time."""
        plain = _Range(from_us // 1000, to_us // 1000 + _LATE_MS)
        if near is None:
            return plain
        with self._taken(self._segments) as reader:
            try:
                record = reader.read(near.topic, near.partition, [near.offset], _ANSWER_S)[0]
            except RecordsGoneError:
                return plain
            with suppress(RecordsGoneError):
                # For a verdict, use its evidence's frames record, because the verdict was written later.
                if (shown := _shown_by(record)) is not None:
                    record = reader.read(FRAMES.name, shown.partition, [shown.offset], _ANSWER_S)[0]
        span = _span_of(record)
        if span is None or record.camera != camera:
            return plain
        # Footage may be sent faster than it was filmed, but not before it was filmed.
        at_ms, begin_ms, end_ms = record.timestamp_ms, *span
        before_ms, after_ms = max(0, end_ms - from_us // 1000), max(0, to_us // 1000 - begin_ms)
        return _Range(at_ms - before_ms, at_ms + after_ms + _NEAR_MS, record.partition)

    def _read(
        self, reader: TopicReader, camera: str, where: _Range, earlier_ms: int, to_us: int
    ) -> Iterator[FilmedSegment]:
        """Yield a camera's segments from a range of frames.v1, up to the first segment that begins at `to_us`
        or later.
        """
        partitions = (
            [where.partition] if where.partition is not None else reader.partitions(FRAMES.name, _ANSWER_S)
        )
        starts = reader.at(FRAMES.name, partitions, max(0, where.begin_ms - earlier_ms), _ANSWER_S)
        ends = reader.ends(FRAMES.name, partitions, _ANSWER_S)
        reading = {number for number in partitions if 0 <= starts[number] < ends[number]}
        if not reading:
            return
        reader.read_from(FRAMES.name, {number: starts[number] for number in reading})
        deadline = time.monotonic() + 3 * _ANSWER_S
        key = camera.encode()
        while reading:
            message = reader.next(1.0)
            if time.monotonic() > deadline:
                raise TransientError(f"{FRAMES.name} cannot be read in time: ask for a shorter range")
            if message is None:
                continue
            number = message.partition if isinstance(message, End) else message.partition() or 0
            if isinstance(message, End) or number not in reading:
                reading.discard(number)
                continue
            offset = message.offset() or 0
            if message.timestamp()[1] > where.stop_ms or offset + 1 >= ends[number]:
                reading.discard(number)
            if message.key() != key:
                continue
            filmed = filmed_segment(record_of(message))
            if filmed is None:
                continue
            if filmed.start_us >= to_us:
                return
            yield filmed

    @contextmanager
    def _taken(self, readers: queue.LifoQueue[_Reader]) -> Iterator[_Reader]:
        """Give the `with` block a reader that no other thread uses.

        Raises:
            TransientError: Kafka does not answer.
        """
        reader = readers.get()
        try:
            yield reader
        except KafkaException as error:
            reader.close()
            raise TransientError(f"Kafka does not answer: {error.args[0].str()}") from error
        finally:
            if isinstance(reader, TopicReader):
                reader.stop_reading()
            readers.put(reader)


def filmed_segment(record: Record) -> FilmedSegment | None:
    """Parse a record of frames.v1 that has a segment; None if it is an event or invalid."""
    try:
        frames = received(FramesRecord, record)
    except WireError:
        return None
    place = record.partition, record.offset
    return FilmedSegment(place, frames, record.timestamp_ms) if frames.HasField("segment") else None


def _block(record: Record, filmed: FilmedSegment) -> StrideBlock | None:
    """Return the block in a record of tokens.v1; None if it was not made from `filmed`."""
    try:
        tokens = received(TokensRecord, record)
    except WireError:
        return None
    if tokens.epoch != filmed.record.epoch:
        return None
    return tokens.block if _input_of(tokens.block, filmed) is not None else None


def _input_of(block: StrideBlock, filmed: FilmedSegment) -> int | None:
    places = [(ref.partition, ref.offset) for ref in block.inputs]
    return places.index(filmed.place) if filmed.place in places else None


def _computed(block: StrideBlock, filmed: FilmedSegment, row: int) -> Mask | None:
    source = _input_of(block, filmed)
    frame = next(
        (place for place, frame in enumerate(block.frames) if (frame.input, frame.row) == (source, row)), None
    )
    for patch in block.patches:
        if frame in patch.frames:
            try:
                return unpack_mask(patch.keep, block.group_rows, block.group_cols)
            except ValueError:
                return None
    return None


def _shown_by(record: Record) -> RecordRef | None:
    """Return the first frames record in a verdict's evidence; None if there is no evidence or the record is
    not a verdict.
    """
    if (verdict := _verdict_of(record)) is None:
        return None
    return next((shown.record for shown in verdict.evidence if shown.record.topic == FRAMES.name), None)


def _span_of(record: Record) -> tuple[int, int] | None:
    """Return the begin and end of a frames record or verdict in Unix milliseconds; None for other records."""
    if record.topic == FRAMES.name:
        filmed = filmed_segment(record)
        return None if filmed is None else (filmed.start_us // 1000, filmed.end_us // 1000)
    if (verdict := _verdict_of(record)) is None:
        return None
    return verdict.start.ToMilliseconds(), verdict.end.ToMilliseconds()


def _verdict_of(record: Record) -> Verdict | None:
    """Return the verdict in a record; None if the record is from another topic or invalid."""
    if record.topic != VERDICTS.name:
        return None
    try:
        return received(Verdict, record)
    except WireError:
        return None
