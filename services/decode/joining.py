"""Decides how a segment joins its camera's epoch: it continues the epoch, is late, or begins the next one."""

import time
from collections.abc import Callable
from dataclasses import replace

import google_crc32c

from lookout.rules.masks import AppliedMask
from lookout.runtime.tenants import TenantUsage
from lookout.runtime.worker import Record
from lookout.services.decode.advice import Advice
from lookout.services.decode.epoch import OpenEpoch
from lookout.services.decode.segments import SegmentReader
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import (
    began_ms,
    captured_ms,
    ended_ms,
    is_other_footage,
    jump_of,
    labels_of,
    late_end_us,
    lost_before,
)
from lookout.services.decode.writing import FramesWriter
from lookout.streams.stages import Camera, Draft, gap
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.video.segments import DecodedSegment
from lookout.wire import tenant_of


class SegmentJoiner:
    """Decides how segments join their epochs. Any thread may call it, but only one at a time per camera.

    Args:
        settings: Decode's settings.
        reader: Decodes segments.
        writer: Writes segments and events.
        advice: Warns about cameras that are not set up correctly.
        tenants: Counts what tenants send.
        clock: Monotonic seconds.
        wall_ms: This machine's clock, Unix milliseconds.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        reader: SegmentReader,
        writer: FramesWriter,
        advice: Advice,
        tenants: TenantUsage,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._settings, self._reader, self._writer = settings, reader, writer
        self._advice, self._tenants, self._clock, self._wall_ms = advice, tenants, clock, wall_ms

    def join(self, camera: Camera[OpenEpoch], unit: OpenEpoch, record: Record, draft: Draft) -> OpenEpoch:
        """Decode a segment and write it; return the updated unit.

        Args:
            camera: The camera. The segment counts towards its quota even if this call fails.
            unit: The camera's state before the segment.
            record: The segment.
            draft: Takes the records.

        Raises:
            BadRecordError: The segment cannot be used.
            TransientError: The segment's bytes, a decoder, or space for the pixels are not available now.
            CameraQuotaError: The camera's pixels exceeded its share of the store for too long.
        """
        name, stream = camera.camera, unit.stream
        captured_ms(record)  # checked before anything is decoded
        labels, hidden = self._labels(name, record)
        broken = self._broken(unit, record, labels)
        continues = not broken and stream.open
        started = self._clock()
        try:
            # Counted even if decoding fails: bad bytes still cost a fetch and an attempt.
            value = self._reader.fetch(record)
            use(camera, size=len(value))
            self._tenants.add(tenant_of(labels.tenant), "bytes", len(value))
            decoded = self._reader.decode(value, hidden, stream if continues else None)
        finally:
            use(camera, work_s=self._clock() - started)
        unit = replace(unit, usage=camera.unit.usage)
        span = began_ms(record) * 1000, ended_ms(record, decoded) * 1000
        if (erasure := self._reader.fence.hides(name, *span)) is not None:
            return self._writer.left_out(name, unit, record, draft, erased=erasure.id)
        facts = decoded.facts
        # Checked before late segments, because two cameras with the same id look like segments out of order.
        # No window may mix the two cameras, so each switch between them begins a new epoch.
        if unit.seen.lines.take(facts.first_us, facts.end_us, google_crc32c.value(value)):
            self._advice.two_cameras(unit.seen, name)
            if decoded.continued:
                decoded = self._reader.decode(value, hidden)
            unit = self._begin_epoch(name, unit, record, decoded, draft, labels=labels, reason="two-cameras")
            draft.counts["two_cameras"] += 1
            return unit
        other = is_other_footage(stream, record, decoded)
        if decoded.continued and other:
            decoded = self._reader.decode(value, hidden)  # time stamps continue only by chance
        # A late segment was sent twice, or again after an error, so its time is already written.
        if continues and decoded.continued:
            end_us = decoded.end_stream_us if decoded.end_stream_us <= stream.watermark_us else None
            if end_us is None:
                return self._writer.segment(name, unit, record, decoded, draft, labels=labels, stream=stream)
        else:
            # A segment can be late even after a silence: its producer may have waited that long for Kafka's
            # confirmation before it sent the segment again.
            end_us = None if broken or other or not stream.epoch else late_end_us(stream, record, decoded)
        if end_us is not None:
            self._advice.late(unit.seen, name)
            return self._writer.late(name, unit, record, decoded, draft, end_us=end_us)
        # If records are missing, retention ended the epoch, whatever the camera's clock says.
        reason = "retention" if lost_before(stream, record) else broken or jump_of(stream, decoded)
        return self._begin_epoch(name, unit, record, decoded, draft, labels=labels, reason=reason)

    def _labels(self, camera: str, record: Record) -> tuple[CameraLabels, AppliedMask]:
        """Return a segment's labels and the privacy mask for its pictures."""
        hidden = self._reader.masks.filmed(camera, began_ms(record) * 1000)
        labels = labels_of(record)
        labels.masks.extend(hidden.names)
        return labels, hidden

    def _begin_epoch(
        self,
        camera: str,
        unit: OpenEpoch,
        record: Record,
        decoded: DecodedSegment,
        draft: Draft,
        *,
        labels: CameraLabels,
        reason: str,
    ) -> OpenEpoch:
        """Write a segment that begins an epoch. If an epoch is open, end it first, for `reason`."""
        stream, ends = unit.stream, None
        if stream.open:
            until_us = max(0, began_ms(record) * 1000 - stream.wall_us) if reason == "retention" else 0
            ends = gap(stream.watermark_us, reason, until_us)
        begun = stream.following(record, decoded, self._wall_ms())
        return self._writer.segment(
            camera, unit, record, decoded, draft, labels=labels, stream=begun, ends=ends
        )

    def _broken(self, unit: OpenEpoch, record: Record, labels: CameraLabels) -> str | None:
        """Return the reason, known before decoding, why the segment cannot continue the epoch; None if it may
        continue.
        """
        if unit.reconfigured:
            return "configuration"
        if unit.stream.is_ahead(self._wall_ms()):
            return "clock-reset"  # every reader rejects records of this epoch
        if labels.tenant != unit.stream.labels.tenant:
            return "tenant"  # no window shows one tenant's footage to another's watch
        if labels.masks != unit.stream.labels.masks:
            return "masks"  # no window reuses what was computed under other masks
        quiet_ms = began_ms(record) - unit.stream.heard_ms
        return unit.stream.silence if quiet_ms > self._settings.silence_s * 1000 else None


def use(camera: Camera[OpenEpoch], size: int = 0, work_s: float = 0.0, failures: int = 0) -> None:
    """Charge work to a camera's quota, even if its record fails.

    Args:
        camera: The camera, whose unit is replaced.
        size: Bytes that it sent.
        work_s: Seconds that its segment occupied a decoder.
        failures: Segments that could not be used.
    """
    usage = camera.unit.usage.add(size=size, work_s=work_s, failures=failures)
    camera.unit = replace(camera.unit, usage=usage)
