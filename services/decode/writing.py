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
    """Puts a tensor into the store (`ProducingStage.put`)."""

    def __call__(self, draft: Draft, ref: TensorRef, array: Array, seconds: float) -> TensorRef: ...


@dataclass(frozen=True, slots=True)
class FramesWriter:
    """Writes frames records into drafts.

    Attributes:
        settings: Decode's settings.
        reader: Makes references to pixels.
        put: Puts pixels into the store.
        skips: Logs skipped segments.
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
        """Write a segment; return the updated unit.

        Args:
            camera: The camera's id.
            unit: The unit before the segment.
            record: The segment's record.
            decoded: The segment.
            draft: Takes the records.
            labels: The camera's labels in the segment.
            stream: The epoch that the segment continues or begins.
            ends: The event of the gap that ends the unit's epoch; None: the epoch does not end.

        Raises:
            TransientError: The store is full; retry later.
            CameraQuotaError: The camera's pixels exceeded its share of the store for too long.
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
            body.facts.bytes = 0  # the size would reveal something about the hidden part of the pictures
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
        """Write an event for a late segment that ends at stream time `end_us`; return the updated unit."""
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
        """Write an event for a skipped segment, whose time will be missing from the blocks; return the
        updated unit.

        Args:
            camera: The camera's id.
            unit: The unit before the segment.
            record: The segment's record.
            draft: Takes the event; no event is written if no epoch is open.
            quota: Why a quota skips the segment; empty if no quota does.
            erased: Which erasure covers the segment; empty if none does.
        """
        unit = unit.leaving_out(record, began_ms(record), quota)
        reason, cause = (quota, CAUSE_QUOTA) if quota else (f"erased: {erased}", CAUSE_ERASED)
        if quota:
            self.skips.warning(camera, "segment skipped", reason=reason)
        draft.counts["over_quota" if quota else "erased"] += 1
        if unit.stream.open:
            event = skipped(reference_of(record), unit.stream.watermark_us, reason, cause)
            self.event(camera, unit, event, draft)
        return unit

    def gap(self, camera: str, unit: OpenEpoch, reason: str, draft: Draft) -> OpenEpoch:
        """Write the gap that ends the camera's epoch; return the camera's new state, marked silent."""
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
