"""Writes decode's records: segments, and events of a camera's stream."""

from dataclasses import dataclass, replace
from typing import Protocol

from lookout.runtime.observe import LimitedLog
from lookout.runtime.store import Array
from lookout.runtime.worker import Record
from lookout.services.decode.epoch import OpenEpoch
from lookout.services.decode.health import HealthWriter
from lookout.services.decode.records import fill_segment
from lookout.services.decode.segments import SegmentReader
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import Stream, began_ms, ended_ms, span_us
from lookout.streams.stages import Draft, envelope, gap, late, reference_of, skipped
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import CAUSE_ERASED, CAUSE_QUOTA, StreamEvent, TensorRef
from lookout.video.segments import DecodedSegment
from lookout.wire import FRAMES, headers, labelled

_COUNTS = {StreamEvent.KIND_GAP: "gaps", StreamEvent.KIND_LATE: "late"}


class Puts(Protocol):
    """Puts tensors into the store (`ProducingStage.put`)."""

    def __call__(self, draft: Draft, ref: TensorRef, array: Array, seconds: float) -> TensorRef: ...


@dataclass(frozen=True, slots=True)
class FramesWriter:
    """Writes frames records into drafts.

    Attributes:
        settings: Decode's settings.
        reader: Makes references to pixels.
        put: Keeps pixels.
        skips: Logs segments that are left out.
        health: Writes incidents about cameras' health.
    """

    settings: DecodeSettings
    reader: SegmentReader
    put: Puts
    skips: LimitedLog
    health: HealthWriter

    def segment(
        self,
        camera: str,
        unit: OpenEpoch,
        record: Record,
        decoded: DecodedSegment,
        draft: Draft,
        *,
        labels: CameraLabels,
        stream: Stream,
        ends: StreamEvent | None = None,
    ) -> OpenEpoch:
        """Write a segment; return the unit after it.

        Args:
            camera: The camera's id.
            unit: The unit before it.
            record: Its record.
            decoded: The segment.
            draft: Takes the records.
            labels: What the segment says of the camera.
            stream: The epoch that it continues or begins.
            ends: The gap that ends the unit's epoch; None: it does not end.

        Raises:
            TransientError: The store is full; retry later.
            CameraQuotaError: The camera stayed over its quota for too long.
        """
        following = decoded.following()
        after = replace(
            stream.anchored(record, decoded, self.settings.wall_anchor_us),
            watermark_us=max(stream.watermark_us, decoded.end_stream_us),
            origin_us=following.epoch_us,
            next_us=following.next_us,
            next_sample=decoded.next_slot,
            labels=labels,
            finished=headers.text(record.headers, headers.LAST) is not None,
        ).heard(record, ended_ms(record, decoded))
        message, first = self._message(camera, after), stream.watermark_us == 0
        fill_segment(message, decoded, reference_of(record), settings=self.settings, first=first)
        refs: list[TensorRef] = []
        body = message.segment
        if labels.masks:
            body.facts.bytes = 0  # the size of a picture would tell something about what is hidden in it
        if len(decoded.pixels):
            seconds = (body.end_us - body.start_us) / 1e6
            refs.append(self.put(draft, self.reader.reference(message), decoded.pixels, seconds))
            body.pixels.CopyFrom(refs[0])
        if ends is not None:
            self.event(camera, unit, ends, draft)
        draft.write(FRAMES.name, camera, message, refs)
        draft.counts.update(segments=1, frames=len(decoded.frames), damaged_frames=decoded.facts.corrupt)
        unit = replace(unit, stream=after, reconfigured=False)
        reason = "" if ends is None else ends.reason
        return self.health.segment(camera, unit, record, decoded, draft, ends=reason)

    def late(
        self,
        camera: str,
        unit: OpenEpoch,
        record: Record,
        decoded: DecodedSegment,
        draft: Draft,
        *,
        end_us: int,
    ) -> OpenEpoch:
        """Write that a segment, which ends at stream time `end_us`, is late; return the unit after it."""
        event = late(reference_of(record), end_us - span_us(decoded), end_us)
        self.event(camera, unit, event, draft)
        return replace(unit, stream=unit.stream.heard(record, ended_ms(record, decoded)))

    def left_out(
        self,
        camera: str,
        unit: OpenEpoch,
        record: Record,
        draft: Draft,
        *,
        quota: str = "",
        erased: str = "",
    ) -> OpenEpoch:
        """Write that a segment is left out; return the unit after it. Its time will be missing from its
        blocks.

        Args:
            camera: The camera's id.
            unit: The unit before it.
            record: Its record.
            draft: Takes the event; an epoch that has not begun needs none.
            quota: Which quota is used up, or empty.
            erased: Which erasure hides it, or empty.
        """
        unit = unit.leaving_out(record, began_ms(record), quota)
        reason, cause = (quota, CAUSE_QUOTA) if quota else (f"erased: {erased}", CAUSE_ERASED)
        if quota:
            self.skips.warning(camera, "segment left out", reason=reason)
        draft.counts["over_quota" if quota else "erased"] += 1
        if unit.stream.open:
            event = skipped(reference_of(record), unit.stream.watermark_us, reason, cause)
            self.event(camera, unit, event, draft)
        return unit

    def gap(self, camera: str, unit: OpenEpoch, reason: str, draft: Draft) -> OpenEpoch:
        """Write the gap that ends the camera's epoch; return the camera's new state, which is silent."""
        self.event(camera, unit, gap(unit.stream.watermark_us, reason), draft)
        if reason == "silence":
            unit = self.health.silent(camera, unit, self.settings.silence_s, draft)
        else:
            unit = self.health.end(camera, unit, reason, draft)
        return replace(unit, stream=replace(unit.stream, silent=True))

    def event(self, camera: str, unit: OpenEpoch, event: StreamEvent, draft: Draft) -> None:
        """Write an event of the camera's epoch."""
        if event.kind in _COUNTS:
            draft.counts[_COUNTS[event.kind]] += 1
        message = self._message(camera, unit.stream)
        message.event.CopyFrom(event)
        draft.write(FRAMES.name, camera, message)

    def _message(self, camera: str, stream: Stream) -> FramesRecord:
        labels = stream.labels if labelled(stream.labels) else None
        sampling = self.settings.sampling
        return envelope(FramesRecord, camera, stream.epoch, stream.wall_us, sampling, labels)
