"""One camera's segments become frames records: stream epochs and stream time are decided here."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import google_crc32c
import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.codec import CodecError, DecodedSegment, DecodeRequest, Expected, Fit, Reason, Tail
from lookout.pruning import MotionGather
from lookout.runtime import (
    BadRecordError,
    Handler,
    Output,
    Record,
    RecordsGoneError,
    Result,
    StoredCheckpoint,
    TransientError,
    digest,
)
from lookout.services.decode.fetch import UriFetcher, uri_of
from lookout.services.decode.records import event_record, fill_segment
from lookout.services.decode.settings import DecodeSettings
from lookout.store import Array, LineageBrokenError, StoreFullError, StoreLifecycle, TensorStore, Unread
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, StreamEvent, TensorRef
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.wire import FRAMES, Stage, headers, tensor_id

__all__ = ["CameraState", "DecodeHandler"]

#: raise when stream time or motion is decided differently and old checkpoints cannot be continued
STATE_VERSION = 1
#: longest time between two ticks that counts as watched, seconds
_WATCHED_S = 2.0
#: reasons of the decoder that say nothing about the segment
_AWAY = frozenset({Reason.UNAVAILABLE, Reason.CLOSED})

_log = structlog.get_logger(__name__)


class Decoder(Protocol):
    """What decodes a segment (`lookout.codec.SandboxPool`)."""

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Errors: CodecError."""
        ...


class RecordSource(Protocol):
    """Where records are read again (`lookout.runtime.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """Errors: RecordsGoneError, TransientError."""
        ...


@dataclass(frozen=True, slots=True)
class Stream:
    """One epoch of a camera as far as it is written. Times in microseconds.

    `heard_ms`: until when the camera was heard, by its own clock if it tells it, else by Kafka's.
    """

    epoch: int = 0  # 0: nothing was ever written
    wall_us: int = 0  # wall clock of stream time 0
    watermark_us: int = 0  # stream time up to which records were written
    origin_us: int = 0  # container time of stream time 0
    next_us: int = 0  # container time at which the next segment should begin
    next_sample: int = 0
    heard_ms: int = 0
    silent: bool = False  # the gap of the present silence is written

    @property
    def open(self) -> bool:
        """Whether a segment may continue it."""
        return self.epoch > 0 and not self.silent


@dataclass(slots=True)
class CameraState:
    """A camera. What this process has seen of its silence is no part of the checkpoint."""

    camera: str
    stream: Stream
    quiet_s: float = 0.0
    ticked_at: float | None = None


class DecodeHandler(StoreLifecycle, Handler[CameraState]):
    """camera.segments.v1 -> frames.v1; pixels go to the store.

    A segment that begins within a window after the last one's end continues the epoch; one that lies before
    what was written, by less than `overlap_s` at its start, is late; any other jump of the container's clock,
    and whatever follows a silence, opens the next epoch behind a gap.
    """

    tick_every = 0.5

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: Decoder,
        store: TensorStore,
        log: RecordSource,
    ) -> None:
        self._settings, self._decoder, self._store = settings, decoder, store
        self._records = log
        self._uris = UriFetcher(
            settings.uri_schemes,
            settings.uri_hosts,
            settings.uri_networks,
            settings.segment_bytes,
            settings.uri_timeout_s,
        )
        self._pixels_digest = digest(settings.input_width, settings.input_height, settings.fit.value)
        self.config_digest = digest(
            STATE_VERSION,
            self._pixels_digest,
            repr(settings.gather),
            settings.fps,
            settings.window_s,
            settings.overlap_s,
        )
        self.counts: Counter[str] = Counter()
        store.makes(STAGE_FRAMES, self.materialize)

    # -- state

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """Where the camera's stream stands."""
        if stored is None:
            return CameraState(camera, Stream())
        kept = stored.checkpoint.decode
        stream = Stream(
            epoch=kept.epoch,
            wall_us=kept.wall_offset_us,
            watermark_us=kept.watermark_us,
            origin_us=round(kept.epoch_pts * 1e6),
            next_us=round(kept.last_pts * 1e6),
            next_sample=kept.next_sample,
            heard_ms=kept.last_arrival_ms,
            silent=kept.silent,
        )
        if stored.config_changed and stream.open:
            # Samples and motion of two configurations do not mix: the next segment opens an epoch.
            stream = replace(stream, heard_ms=0)
        return CameraState(camera, stream)

    def handle(self, state: CameraState, record: Record) -> Result:
        """A segment."""
        bytes_ = self._bytes(record)
        stream = state.stream
        silent = stream.open and _began_ms(record) - stream.heard_ms > self._settings.silence_s * 1000
        expected = None if silent or not stream.open else self._expected(stream)
        decoded = self._decode(bytes_, expected, stream.next_sample)
        state.quiet_s, state.ticked_at = 0.0, None
        if expected is not None and decoded.continued:
            if decoded.end_stream_us <= stream.watermark_us:
                return self._late(state, record, decoded)
            return self._write(state, record, decoded, stream, [])
        gap = [] if not stream.open else [self._gap(state, "silence" if silent else _jump(stream, decoded))]
        wall_us = _began_ms(record) * 1000
        opened = Stream(epoch=stream.epoch + 1, wall_us=wall_us, origin_us=decoded.facts.first_us)
        return self._write(state, record, decoded, opened, gap)

    def tick(self, state: CameraState, now: float) -> Result | None:
        """A gap, once, when nothing came for too long.

        Only time that was watched counts: ticks stop while there is a backlog or no broker, and neither is a
        camera's silence.
        """
        stream = state.stream
        if not stream.open:
            return None
        if state.ticked_at is not None:
            state.quiet_s += min(max(0.0, now - state.ticked_at), _WATCHED_S)
        state.ticked_at = now
        if state.quiet_s < self._settings.silence_s:
            return None
        gap = self._gap(state, "silence")
        state.stream = replace(stream, silent=True)
        return Result([gap], self._checkpoint(state.stream))

    # -- segments

    def _bytes(self, record: Record) -> bytes:
        """The container's bytes. Raises BadRecordError."""
        kind = headers.text(record.headers, headers.CONTENT_TYPE) or ""
        if kind.split(";")[0].strip().lower() == headers.URI_LIST:
            return self._uris.fetch(uri_of(record.value))
        return record.value

    def _expected(self, stream: Stream) -> Expected:
        return Expected(
            epoch_us=stream.origin_us,
            next_us=stream.next_us,
            early_us=round(self._settings.overlap_s * 1e6),
            late_us=self._settings.window_us,
        )

    def _decode(self, bytes_: bytes, expected: Expected | None, first_slot: int) -> DecodedSegment:
        settings = self._settings
        request = DecodeRequest(
            settings.input_width,
            settings.input_height,
            grid=settings.grid,
            fit=settings.fit,
            expected=expected,
            first_slot=first_slot if expected is not None else 0,
            tail=Tail.LEAVE,
            gather=MotionGather(settings.gather),
            limits=settings.limits,
        )
        return self._try(bytes_, request)

    def _try(self, bytes_: bytes, request: DecodeRequest) -> DecodedSegment:
        try:
            return self._decoder.decode(bytes_, request)
        except CodecError as error:
            if error.reason in _AWAY:
                raise TransientError(str(error)) from error
            raise BadRecordError(error.reason.value, error.detail) from error

    def _write(
        self,
        state: CameraState,
        record: Record,
        decoded: DecodedSegment,
        stream: Stream,
        before: list[Output],
    ) -> Result:
        """The record of a segment, behind what comes before it."""
        following = decoded.following()
        after = replace(
            stream,
            watermark_us=max(stream.watermark_us, decoded.end_stream_us),
            origin_us=following.epoch_us,
            next_us=following.next_us,
            next_sample=decoded.next_slot,
            heard_ms=max(stream.heard_ms, _heard_ms(record, decoded)),
        )
        segment = RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)
        message = FramesRecord(camera=state.camera, epoch=stream.epoch, wall_offset_us=stream.wall_us)
        settings = self._settings
        first = stream.watermark_us == 0
        fill_segment(message, decoded, segment, fit=settings.fit, gather=settings.gather, first=first)
        tags: list[TensorRef] = []
        if len(decoded.pixels):
            message.segment.pixels.CopyFrom(self._keep(state.camera, stream.epoch, message, decoded))
            tags.append(message.segment.pixels)
        self.counts["segments"] += 1
        self.counts["frames"] += len(decoded.frames)
        self.counts["corrupt"] += decoded.facts.corrupt
        state.stream = after
        output = Output(FRAMES.name, state.camera, message.SerializeToString(), tag=tags)
        return Result([*before, output], self._checkpoint(after))

    def _keep(self, camera: str, epoch: int, message: FramesRecord, decoded: DecodedSegment) -> TensorRef:
        """Put the pixels into the store. Raises TransientError while it is full."""
        body = message.segment
        at = f"{body.segment.partition}.{body.segment.offset}"
        ref = TensorRef(
            id=tensor_id(Stage.DECODE, camera, epoch, body.start_us, f"{self._pixels_digest}.{at}"),
            stage=STAGE_FRAMES,
            camera=camera,
            epoch=epoch,
            config_digest=self._pixels_digest,
            segments=[body.segment],
            input=body.segment,
        )
        seconds = (body.end_us - body.start_us) / 1e6
        try:
            return self._store.put(ref, decoded.pixels, Unread(body.segment.partition, seconds))
        except StoreFullError as error:
            raise TransientError(str(error)) from error

    # -- events

    def _late(self, state: CameraState, record: Record, decoded: DecodedSegment) -> Result:
        """Everything in the segment was covered before: nothing is reopened."""
        span = decoded.facts.end_us - decoded.facts.first_us
        event = StreamEvent(
            kind=StreamEvent.KIND_LATE,
            start_us=max(0, decoded.end_stream_us - span),
            end_us=max(0, decoded.end_stream_us),
            reason="late",
            segment=RecordRef(topic=record.topic, partition=record.partition, offset=record.offset),
        )
        self.counts["late"] += 1
        stream = state.stream
        state.stream = replace(stream, heard_ms=max(stream.heard_ms, _heard_ms(record, decoded)))
        return Result([self._event(state.camera, stream, event)], self._checkpoint(state.stream))

    def _gap(self, state: CameraState, reason: str) -> Output:
        """The end of the present epoch."""
        at = state.stream.watermark_us
        self.counts["gaps"] += 1
        event = StreamEvent(kind=StreamEvent.KIND_GAP, start_us=at, end_us=at, reason=reason)
        return self._event(state.camera, state.stream, event)

    def _event(self, camera: str, stream: Stream, event: StreamEvent) -> Output:
        message = event_record(camera, stream.epoch, stream.wall_us, event)
        return Output(FRAMES.name, camera, message.SerializeToString())

    def _checkpoint(self, stream: Stream) -> Checkpoint:
        return Checkpoint(
            decode=DecodeState(
                epoch=stream.epoch,
                wall_offset_us=stream.wall_us,
                watermark_us=stream.watermark_us,
                epoch_pts=stream.origin_us / 1e6,
                last_pts=stream.next_us / 1e6,
                last_arrival_ms=stream.heard_ms,
                silent=stream.silent,
                next_sample=stream.next_sample,
            )
        )

    # -- pixels

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Pixels again, from the segment's bytes and the frames named in the record.

        Raises LineageBrokenError where the segment is gone or gives other pixels.
        """
        if not isinstance(record, FramesRecord) or not record.HasField("segment"):
            raise LineageBrokenError(f"{ref.id}: pixels are made from a frames record with a segment")
        body, at = record.segment, record.segment.segment
        try:
            source = self._records.read(at.topic, at.partition, [at.offset])[0]
            request = DecodeRequest(
                body.picture.width,
                body.picture.height,
                grid=self._settings.grid,
                fit=Fit(body.picture.fit),
                frames=tuple(frame.index for frame in body.frames),
                vectors=False,
                limits=self._settings.limits,
            )
            pixels = self._try(self._bytes(source), request).pixels
        except (RecordsGoneError, BadRecordError) as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
        if ref.length and google_crc32c.value(np.ascontiguousarray(pixels).tobytes()) != ref.crc32c:
            raise LineageBrokenError(f"{ref.id}: the segment gives other pixels than at first")
        return pixels


def _jump(stream: Stream, decoded: DecodedSegment) -> str:
    return "clock-reset" if decoded.facts.first_us < stream.next_us else "clock-jump"


def _captured_ms(record: Record) -> int | None:
    """Unix milliseconds of the first frame, if the producer says so."""
    text = headers.text(record.headers, headers.CAPTURED_AT) or ""
    return int(text) if text.isdigit() and int(text) < 1 << 43 else None


def _began_ms(record: Record) -> int:
    """Unix milliseconds of the first frame; where nobody says so, when Kafka got the segment."""
    captured = _captured_ms(record)
    return record.timestamp_ms if captured is None else captured


def _heard_ms(record: Record, decoded: DecodedSegment) -> int:
    """The end of a segment on the clock of `_began_ms`: Kafka gets a segment once it has ended."""
    captured = _captured_ms(record)
    facts = decoded.facts
    return record.timestamp_ms if captured is None else captured + (facts.end_us - facts.first_us) // 1000
