"""One camera's segments become frames records: stream epochs and stream time are decided here."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import google_crc32c
import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.errors import BadRecordError, RecordsGoneError, TransientError
from lookout.past.erasures import Fence, check_fence
from lookout.runtime.net.fetch import UriFetcher, uri_of
from lookout.runtime.observe import LimitedLog
from lookout.runtime.store import (
    Array,
    CameraQuotaError,
    Keeper,
    LineageBrokenError,
    StoreLifecycle,
    TensorNotMadeError,
    TensorStore,
    Unread,
)
from lookout.runtime.tenants import TenantUsage
from lookout.runtime.worker import (
    DeadLetter,
    Handler,
    Output,
    Record,
    RecordSource,
    Result,
    StoredCheckpoint,
    digest,
    quota_letter,
)
from lookout.services.decode.backend import Decoder
from lookout.services.decode.claims import Claims
from lookout.services.decode.lines import TimeLines
from lookout.services.decode.quota import LeftOutCount, Usage
from lookout.services.decode.records import fill_segment
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import (
    Stream,
    began_ms,
    captured_ms,
    ended_ms,
    is_other_footage,
    span_us,
)
from lookout.streams import decode_request
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import (
    CAUSE_CLOCK_JUMP,
    CAUSE_CLOCK_RESET,
    CAUSE_CONFIGURATION,
    CAUSE_ENDED,
    CAUSE_ERASED,
    CAUSE_LATE,
    CAUSE_MOVED,
    CAUSE_QUOTA,
    CAUSE_RETENTION,
    CAUSE_SILENCE,
    CAUSE_TWO_CAMERAS,
    STAGE_FRAMES,
    RecordRef,
    StreamEvent,
    TensorRef,
)
from lookout.v1.state_pb2 import Checkpoint
from lookout.video.motion import Fit
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Expected, Reason, Tail
from lookout.wire import (
    FRAMES,
    SEGMENTS,
    Stage,
    WireError,
    dead_letters,
    headers,
    labelled,
    read_labels,
    tenant_of,
    tensor_id,
)

#: what is counted, in `lookout_events_total`
EVENTS = {
    "segments": "segments decoded",
    "frames": "frames sampled from them",
    "damaged_frames": "frames that lost bytes, or were predicted from such frames",
    "gaps": "streams that ended, by silence or by a jump of their clock",
    "late": "segments from before what was already written",
    "erased": "segments left out because their time was erased",
    "over_quota": "segments left out because their camera used up its quota",
    "two_cameras": "segments of another camera than the one before under the same id",
    "in_two_partitions": "times that a camera id was noticed in a second partition",
    "moved": "cameras that went to another partition after partitions were added",
}

#: raise when stream time or motion is decided differently and old checkpoints cannot be continued
STATE_VERSION = 2
DAY_MS = 86_400_000
#: longest time between two ticks that counts as watched, seconds
# Four ticks: a busy process may miss some.
_WATCHED_S = 2.0
#: cameras that moved whose use of their quota is remembered
_LEFT = 10_000
_CAUSES = {
    "silence": CAUSE_SILENCE,
    "ended": CAUSE_ENDED,
    "clock-jump": CAUSE_CLOCK_JUMP,
    "clock-reset": CAUSE_CLOCK_RESET,
    "configuration": CAUSE_CONFIGURATION,
    "two-cameras": CAUSE_TWO_CAMERAS,
    "retention": CAUSE_RETENTION,
    "moved": CAUSE_MOVED,
    "tenant": CAUSE_CONFIGURATION,
}
#: reasons of the decoder that say nothing about the segment
_AWAY = frozenset({Reason.UNAVAILABLE, Reason.CLOSED})

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class CameraState:
    """A camera. What this process has seen of its silence is no part of the checkpoint."""

    camera: str
    stream: Stream
    lines: TimeLines = field(default_factory=TimeLines)
    usage: Usage = field(default_factory=Usage)
    left_out: LeftOutCount = field(default_factory=LeftOutCount)
    left_out_why: str = ""  # of the newest of them, where this process left it out
    quiet_s: float = 0.0
    ticked_at: float | None = None
    told_until: float = 0.0  # monotonic seconds: the warning of two cameras is not repeated before
    late_told_until: float = 0.0  # that of late segments
    reconfigured: bool = False  # the epoch was written under another configuration: the next segment ends it


class DecodeHandler(StoreLifecycle, Handler[CameraState]):
    """camera.segments.v1 -> frames.v1; pixels go to the store.

    A segment that begins within a window after the last one's end continues the epoch; one that lies before
    what was written, by less than `overlap_s` at its start, is late; any other jump of the container's clock,
    and whatever follows a silence, opens the next epoch behind a gap.
    """

    tick_every = 0.5
    events = EVENTS

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: Decoder,
        store: TensorStore,
        records: RecordSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        backend: str = "software",
        fence: Fence | None = None,
        tenants: TenantUsage | None = None,
    ) -> None:
        self._fence = fence or Fence()
        self._tenants = tenants or TenantUsage(
            settings.quotas, ("bytes", "cameras"), interval_s=settings.tenant_interval_s
        )
        self._settings, self._decoder, self._store = settings, decoder, store
        self._keeper = Keeper(store, clock)
        self._records, self._clock, self._wall_ms = records, clock, wall_ms
        self._skips = LimitedLog(_log, clock)
        self._claims = Claims(settings.claim_s, clock)
        self._left: dict[str, Usage] = {}  # of cameras that continue in another partition
        self._uris = UriFetcher(
            settings.uri_schemes,
            settings.uri_hosts,
            settings.uri_networks,
            settings.segment_bytes,
            settings.uri_timeout_s,
        )
        self._pixels_digest = digest(settings.input.width, settings.input.height, settings.fit.value, backend)
        self.config_digest = digest(
            STATE_VERSION,
            self._pixels_digest,
            repr(settings.gather),
            settings.step_us,
            settings.block_samples,
            settings.window_blocks,
            settings.overlap_s,
        )
        self.shared_settings = {
            **settings.shared,
            "input": f"{settings.input_width}x{settings.input_height}",
        }
        store.makes(STAGE_FRAMES, self.materialize)

    # -- state

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """Where the camera's stream stands."""
        if stored is None:
            return CameraState(camera, Stream(), usage=self._left.get(camera, Usage()))
        checkpoint = stored.checkpoint.decode
        # Samples and blocks of two configurations do not mix: the next segment opens an epoch.
        return CameraState(
            camera,
            Stream.of(checkpoint),
            usage=Usage.of(checkpoint.quota),
            left_out=LeftOutCount.of(checkpoint.quota),
            # Kept until a segment is written: other records write checkpoints of the new settings before it.
            reconfigured=stored.config_changed or checkpoint.reconfigured,
        )

    def handle(self, state: CameraState, record: Record) -> Result:
        """A segment, or the notice that the camera's segments are in another partition from now on."""
        if not record.value and headers.text(record.headers, headers.MOVED) is not None:
            return self._moved(state, record)
        letters, before = self._quota_letters(state, record.timestamp_ms), state.left_out
        if letters:
            state.left_out = LeftOutCount()
        try:
            result = self._handled(state, record)
        except Exception:
            state.left_out = before  # its dead letter goes with the next result
            raise
        result = replace(result, outputs=[*letters, *result.outputs])
        return result if self._claim(record) else _counted(result, in_two_partitions=1)

    def _handled(self, state: CameraState, record: Record) -> Result:
        state.usage = state.usage.at(record.timestamp_ms, self._settings.quota)
        began_us = began_ms(record) * 1000
        if (erasure := self._fence.hides(state.camera, began_us, began_us)) is not None:
            return self._erased(state, record, erasure.id)
        tenant = tenant_of(_labels(record).tenant)
        # The camera's own quota first: what it says is nearer to the cause.
        exceeded = state.usage.exceeded(self._settings.quota) or self._tenants.refusal(tenant, state.camera)
        if exceeded is not None:
            return self._skipped(state, record, exceeded)
        try:
            # Before anything is decoded: a camera whose unread pixels fill its share of the store costs no
            # CPU time.
            self._keeper.check(state.camera)
            result = self._segment(state, record)
        except CameraQuotaError as error:
            return self._skipped(state, record, f"quota: {error}")
        self._keeper.forget(state.camera)
        state.quiet_s, state.ticked_at = 0.0, None
        return result

    def _segment(self, state: CameraState, record: Record) -> Result:
        stream = state.stream
        captured_ms(record)  # refused before anything is decoded
        labels = _labels(record)
        broken = self._broken(state, record, labels)
        expected = None if broken or not stream.open else self._expected(stream)
        started = self._clock()
        try:
            # Counted also where it fails: bytes that no decoder reads have cost the fetch and the try.
            value = self._bytes(record)
            state.usage = state.usage.add(size=len(value))
            self._tenants.add(tenant_of(labels.tenant), "bytes", len(value))
            decoded = self._decode(value, expected, stream.next_sample)
        finally:
            state.usage = state.usage.add(work_s=self._clock() - started)
        span = began_ms(record) * 1000, ended_ms(record, decoded) * 1000
        if (erasure := self._fence.hides(state.camera, *span)) is not None:
            return self._erased(state, record, erasure.id)
        facts = decoded.facts
        # Before the segment is taken for late: two cameras under one id look like segments that come out of
        # order.
        if state.lines.take(facts.first_us, facts.end_us, google_crc32c.value(value)):
            if decoded.continued:
                decoded = self._decode(value, None, 0)
            return self._other_camera(state, record, decoded)
        other = is_other_footage(stream, record, decoded)
        if decoded.continued and other:
            decoded = self._decode(value, None, 0)  # its time stamps repeat, its pictures do not
        if expected is not None and decoded.continued:
            # All of it was written before: a producer that sends again after an error, or a segment twice.
            if decoded.end_stream_us <= stream.watermark_us:
                return self._late(state, record, decoded, decoded.end_stream_us)
            return self._write(state, record, decoded, stream, [])
        # Behind a silence, too: a producer may have waited for its answer for as long.
        end_us = None if broken or other or not stream.epoch else self._late_end(stream, record, decoded)
        if end_us is not None:
            return self._late(state, record, decoded, end_us)
        if not stream.open:
            gap = []
        # Retention is the cause where offsets are missing, whatever the camera's clock says.
        elif _removed(stream, record):
            gap = [self._gap(state, "retention", max(0, began_ms(record) * 1000 - stream.wall_us))]
        else:
            gap = [self._gap(state, broken or _jump(stream, decoded))]
        return self._write(state, record, decoded, stream.following(record, decoded, self._wall_ms()), gap)

    def _other_camera(self, state: CameraState, record: Record, decoded: DecodedSegment) -> Result:
        """Two cameras share an id: no window may mix them, so their turns are epochs of their own."""
        if self._clock() >= state.told_until:
            state.told_until = self._clock() + self._settings.claim_s
            _log.warning(
                "two cameras send under one id: give every camera its own id",
                camera=state.camera,
                advice=True,
            )
        gap = [self._gap(state, "two-cameras")] if state.stream.open else []
        stream = state.stream.following(record, decoded, self._wall_ms())
        result = self._write(state, record, decoded, stream, gap)
        return _counted(result, two_cameras=1)

    def rejected(self, state: CameraState, record: Record, reason: DeadLetter) -> Result:
        """A segment that nothing can be made of counts in the camera's quota. It is no sign of life: a camera
        whose segments cannot be read is silent.
        """
        del reason
        state.usage = state.usage.add(failures=1)
        letters = self._quota_letters(state, record.timestamp_ms)
        return self._count_written(state, letters) or Result(checkpoint=self._checkpoint(state))

    def tick(self, state: CameraState, now: float) -> Result | None:
        """A gap, once, when nothing came for too long; a camera that stays away is forgotten. Segments left
        out are counted in a dead letter once their interval is over.

        Only time that was watched counts: ticks stop while there is a backlog or no broker, and neither is a
        camera's silence.
        """
        stream = state.stream
        if not stream.open:
            if self._is_gone(state, now * 1000):
                return self._forgotten(state)
            return self._count_written(state, self._quota_letters(state, now * 1000))
        # The first tick after a segment only marks the time: how long nobody had looked before it is not
        # known.
        if state.ticked_at is not None:
            # Not more than one tick's time at once: while the process stood still nobody watched the camera.
            state.quiet_s += min(max(0.0, now - state.ticked_at), _WATCHED_S)
        state.ticked_at = now
        if state.quiet_s >= self._settings.silence_s:
            return self._offline(state)
        return self._count_written(state, self._quota_letters(state, now * 1000))

    def _is_gone(self, state: CameraState, now_ms: float) -> bool:
        """Whether a camera without an open stream stays away for long enough. One of which nothing could ever
        be decoded is forgotten once its quota begins again.
        """
        stream, settings = state.stream, self._settings
        if not stream.epoch:
            return now_ms - state.usage.since_ms > settings.quota_interval_s * 1000
        days = settings.forget_after_days
        return days is not None and now_ms - max(stream.heard_ms, stream.arrived_ms) > days * DAY_MS

    def passed(self, state: CameraState, record_ms: int) -> Result | None:
        """A gap, once, where other cameras of the partition were heard for too long and this one was not."""
        stream = state.stream
        quiet_ms = record_ms - stream.arrived_ms
        silent = stream.open and stream.arrived_ms > 0 and quiet_ms > self._settings.silence_s * 1000
        if silent:
            return self._offline(state)
        return self._count_written(state, self._quota_letters(state, record_ms))

    def ends(self, camera: str, active_ms: float) -> bool:
        """A camera that was erased whole is forgotten once it is silent."""
        return self._fence.ends(camera, active_ms)

    def forget(self, state: CameraState) -> Result | None:
        """The dead letter of segments that were left out: the camera's checkpoint counts them no longer."""
        return Result(self._quota_letters(state))

    def revoked(self, partition: int) -> None:
        """Another worker's partition."""
        self._claims.release(partition)
        super().revoked(partition)

    def _broken(self, state: CameraState, record: Record, labels: CameraLabels) -> str | None:
        """Why the segment cannot continue the epoch, before it is decoded."""
        if state.reconfigured:
            return "configuration"
        if state.stream.is_ahead(self._wall_ms()):
            return "clock-reset"  # no reader takes a record of this epoch
        if labels.tenant != state.stream.labels.tenant:
            return "tenant"  # no window shows one tenant's footage to another's watch
        quiet_ms = began_ms(record) - state.stream.heard_ms
        return state.stream.silence if quiet_ms > self._settings.silence_s * 1000 else None

    def _claim(self, record: Record) -> bool:
        """False, and a warning, where the camera's records come in two partitions: its streams get mixed up
        downstream.
        """
        claimant = self._claims.take(record.camera, record.partition)
        if claimant is None:
            return True
        _log.warning(
            "a camera id is in two partitions: give every camera its own id, and let one producer "
            "(or one partitioner) write it; while partitions are added it is seen once",
            camera=record.camera,
            partitions=sorted((claimant, record.partition)),
            advice=True,
        )
        return False

    def _forgotten(self, state: CameraState) -> Result:
        letters = self._quota_letters(state)
        state.stream, state.usage, state.left_out = Stream(), Usage(), LeftOutCount()
        return Result(letters, forget=True)

    def _moved(self, state: CameraState, record: Record) -> Result:
        """The camera continues in another partition: its epoch ends here, and it is forgotten here.

        A gap also behind one of silence: the camera is not offline. What it used of its quota stays: whoever
        writes its segments can write such a notice, too.
        """
        usage = state.usage.at(record.timestamp_ms, self._settings.quota)
        gap = self._gap(state, "moved") if state.stream.epoch else None
        forgotten = self._forgotten(state)
        self._left[state.camera] = usage
        while len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        if gap is None:
            return forgotten
        return replace(forgotten, outputs=[*forgotten.outputs, gap], counts={"gaps": 1, "moved": 1})

    def _offline(self, state: CameraState) -> Result:
        gap = self._gap(state, state.stream.silence)
        state.stream = replace(state.stream, silent=True)
        return Result([gap], self._checkpoint(state), counts={"gaps": 1})

    @staticmethod
    def _late_end(stream: Stream, record: Record, decoded: DecodedSegment) -> int | None:
        """Stream time at which a segment from before the watermark ends, as its producer's clock tells; None
        where that is not so, or longer ago than an epoch survives: then the camera's clock was set back.
        """
        captured = captured_ms(record)
        if captured is None:
            return None
        end_us = captured * 1000 - stream.wall_us + span_us(decoded)
        return end_us if 0 < end_us <= stream.watermark_us else None

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
        request = decode_request(
            settings.input.width,
            settings.input.height,
            gather=settings.gather,
            grid=settings.grid,
            fit=settings.fit,
            expected=expected,
            first_slot=first_slot,
            # The last sample of a segment may lie in the next one, which follows within the epoch.
            tail=Tail.LEAVE,
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
        anchored = stream.anchored(record, decoded, self._settings.wall_anchor_us)
        after = replace(
            anchored,
            watermark_us=max(stream.watermark_us, decoded.end_stream_us),
            origin_us=following.epoch_us,
            next_us=following.next_us,
            next_sample=decoded.next_slot,
            labels=_labels(record),
            finished=headers.text(record.headers, headers.LAST) is not None,
        ).heard(record, ended_ms(record, decoded))
        segment = RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)
        message = self._message(state.camera, after)
        settings = self._settings
        first = stream.watermark_us == 0
        fill_segment(message, decoded, segment, settings=settings, first=first)
        tags: list[TensorRef] = []
        if len(decoded.pixels):
            message.segment.pixels.CopyFrom(self._keep(state.camera, stream.epoch, message, decoded))
            tags.append(message.segment.pixels)
        state.stream, state.reconfigured = after, False
        output = Output(FRAMES.name, state.camera, message.SerializeToString(), tensors=tags)
        counts = {
            "segments": 1,
            "frames": len(decoded.frames),
            "damaged_frames": decoded.facts.corrupt,
            "gaps": len(before),
        }
        return Result([*before, output], self._checkpoint(state), counts=counts)

    def _keep(self, camera: str, epoch: int, message: FramesRecord, decoded: DecodedSegment) -> TensorRef:
        """Put the pixels into the store. Raises what `Keeper.put` raises."""
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
        return self._keeper.put(ref, decoded.pixels, Unread(body.segment.partition, seconds))

    # -- events

    def _late(self, state: CameraState, record: Record, decoded: DecodedSegment, end_us: int) -> Result:
        """Everything in the segment was covered before: nothing is reopened."""
        event = StreamEvent(
            kind=StreamEvent.KIND_LATE,
            start_us=max(0, end_us - span_us(decoded)),
            end_us=max(0, end_us),
            reason="late",
            cause=CAUSE_LATE,
            segment=RecordRef(topic=record.topic, partition=record.partition, offset=record.offset),
        )
        if self._clock() >= state.late_told_until:
            state.late_told_until = self._clock() + self._settings.claim_s
            _log.warning(
                "segments find their time decided: they were sent twice, or come after later ones; "
                "send them once and in order",
                camera=state.camera,
                advice=True,
            )
        output = self._event(state, event)
        state.stream = state.stream.heard(record, ended_ms(record, decoded))
        return Result([output], self._checkpoint(state), counts={"late": 1})

    def _skipped(self, state: CameraState, record: Record, reason: str) -> Result:
        """The segment is left out: the camera used up its quota. Its time will be missing from its blocks."""
        state.quiet_s, state.ticked_at = 0.0, None
        state.stream = state.stream.heard(record, began_ms(record))
        state.left_out, state.left_out_why = state.left_out.add(record), reason
        self._skips.warning(state.camera, "segment left out", reason=reason)
        return self._left_out(state, record, reason, CAUSE_QUOTA, {"over_quota": 1})

    def _erased(self, state: CameraState, record: Record, erasure: str) -> Result:
        """The segment's time was erased before it was read. Its time will be missing from its blocks."""
        state.quiet_s, state.ticked_at = 0.0, None
        state.stream = state.stream.heard(record, began_ms(record))
        return self._left_out(state, record, f"erased: {erasure}", CAUSE_ERASED, {"erased": 1})

    def _left_out(
        self, state: CameraState, record: Record, reason: str, cause: int, counts: dict[str, int]
    ) -> Result:
        """The event of a segment that is not decoded; an epoch that has not begun needs none."""
        stream = state.stream
        if not stream.open:
            return Result(checkpoint=self._checkpoint(state), counts=counts)
        event = StreamEvent(
            kind=StreamEvent.KIND_SKIPPED,
            start_us=stream.watermark_us,
            end_us=stream.watermark_us,
            reason=reason,
            cause=cause,  # type: ignore[arg-type]
            segment=RecordRef(topic=record.topic, partition=record.partition, offset=record.offset),
        )
        return Result([self._event(state, event)], self._checkpoint(state), counts=counts)

    def _quota_letters(self, state: CameraState, now_ms: float | None = None) -> list[Output]:
        """The dead letter that counts the segments left out, if there are any and their interval is over.

        Args:
            state: The camera. It is not changed.
            now_ms: Unix milliseconds; None: whether or not the interval is over.
        """
        limits, segments = self._settings.quota, state.left_out.segments
        if segments is None or (now_ms is not None and not state.left_out.due(now_ms, limits)):
            return []
        why = state.left_out_why or "the camera or its tenant was over a quota"
        detail = (
            f"{segments.count} segments were left out, the first at offset {segments.first}, the last at "
            f"offset {segments.last}: {why}"
        )
        topic = dead_letters(SEGMENTS).name
        return [quota_letter(segments, state.camera, detail, stage=Stage.DECODE.value, topic=topic)]

    def _count_written(self, state: CameraState, letters: list[Output]) -> Result | None:
        """The dead letter of segments left out, with a checkpoint that counts again; None without one."""
        if not letters:
            return None
        state.left_out = LeftOutCount()
        return Result(letters, self._checkpoint(state))

    def _gap(self, state: CameraState, reason: str, until_us: int = 0) -> Output:
        """The end of the present epoch; a gap whose end is known lasts until that stream time."""
        at = state.stream.watermark_us
        event = StreamEvent(
            kind=StreamEvent.KIND_GAP,
            start_us=at,
            end_us=max(at, until_us),
            reason=reason,
            cause=_CAUSES[reason],
        )
        return self._event(state, event)

    def _event(self, state: CameraState, event: StreamEvent) -> Output:
        message = self._message(state.camera, state.stream)
        message.event.CopyFrom(event)
        return Output(FRAMES.name, state.camera, message.SerializeToString())

    def _message(self, camera: str, stream: Stream) -> FramesRecord:
        return FramesRecord(
            camera=camera,
            epoch=stream.epoch,
            wall_offset_us=stream.wall_us,
            sampling=self._settings.sampling,
            labels=stream.labels if labelled(stream.labels) else None,
        )

    @staticmethod
    def _checkpoint(state: CameraState) -> Checkpoint:
        message = state.stream.message()
        message.reconfigured = state.reconfigured
        message.quota.CopyFrom(state.usage.message())
        state.left_out.fill(message.quota)
        return Checkpoint(decode=message)

    # -- pixels

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Pixels again, from the segment's bytes and the frames named in the record.

        Raises:
            LineageBrokenError: The segment is gone or gives other pixels.
            TensorNotMadeError: The segment's host does not give it now.
            TransientError: Kafka or the decoders are away.
        """
        if not isinstance(record, FramesRecord) or not record.HasField("segment"):
            raise LineageBrokenError(f"{ref.id}: pixels are made from a frames record with a segment")
        body, at = record.segment, record.segment.segment
        check_fence(self._fence, ref, record.wall_offset_us, body.start_us, body.end_us)
        try:
            source = self._records.read(at.topic, at.partition, [at.offset])[0]
            if not source.camera == record.camera == ref.camera:
                raise LineageBrokenError(f"{ref.id}: offset {at.offset} is a segment of another camera")
            request = decode_request(
                body.picture.width,
                body.picture.height,
                grid=self._settings.grid,
                fit=Fit(body.picture.fit),
                # By index, not by time: the same frames whatever the sampling is by now.
                frames=tuple(frame.index for frame in body.frames),
                limits=self._settings.limits,
            )
            pixels = self._try(self._bytes_again(ref, source), request).pixels
        except (RecordsGoneError, BadRecordError) as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
        if ref.length and google_crc32c.value(np.ascontiguousarray(pixels).tobytes()) != ref.crc32c:
            raise LineageBrokenError(f"{ref.id}: the segment gives other pixels than at first")
        return pixels

    def _bytes_again(self, ref: TensorRef, source: Record) -> bytes:
        """The segment's bytes, for those who wait for its pixels: an absent host is its camera's matter."""
        try:
            return self._bytes(source)
        except TransientError as error:
            raise TensorNotMadeError(f"{ref.id}: {error}") from error


def _labels(record: Record) -> CameraLabels:
    """What a segment says of its camera. Raises BadRecordError."""
    try:
        return read_labels(record.headers)
    except WireError as error:
        raise BadRecordError("bad-labels", str(error)) from error


def _counted(result: Result, **more: int) -> Result:
    return replace(result, counts={**result.counts, **more})


def _removed(stream: Stream, record: Record) -> bool:
    """Whether retention removed records of the partition between the camera's newest segment and this one."""
    return record.loss is not None and 0 < stream.arrived_ms < record.loss.until_ms


def _jump(stream: Stream, decoded: DecodedSegment) -> str:
    return "clock-reset" if decoded.facts.first_us < stream.next_us else "clock-jump"
