"""A camera's position in its stream (epoch and clocks), and its conversion for checkpoints."""

from dataclasses import dataclass, field, replace

from lookout.errors import BadRecordError
from lookout.runtime.worker import Record
from lookout.text import clean
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.state_pb2 import DecodeState
from lookout.video import segments
from lookout.video.segments import DecodedSegment
from lookout.wire import WireError, headers, labelled, read_labels
from lookout.wire.limits import EPOCH_AHEAD_MS

#: valid times of a camera's clock: from the year 2000 up to 2255; record times have only the upper limit
_FIRST_MS, _LAST_MS = headers.FIRST_CAPTURED_MS, headers.LAST_CAPTURED_MS
#: Unix ms (2001): if a machine's clock shows an earlier time, it was never set
FIRST_NOW_MS = 10**12
#: epoch numbers per millisecond, one for each partition; `_LAST_MS` times this stays below 2^53
PER_MS = 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """The written part of a camera's epoch. Stream and container times are in microseconds.

    Attributes:
        epoch: The epoch's number: Unix milliseconds of the record that opened it, times 1000, plus its
            partition; 0: nothing was ever written.
        wall_us: The clock offset (Unix time minus stream time), as last measured.
        anchored_us: Stream time of that measurement.
        least_us: The smallest clock offset of a segment since that measurement; 0: no segment yet.
        watermark_us: Stream time up to which records are written.
        origin_us: Container time at stream time 0.
        next_us: Container time at which the next segment should begin.
        next_sample: The first grid point that the next segment may fill.
        heard_ms: End of the newest segment in Unix milliseconds, by the camera's clock if it reports one,
            else by Kafka's.
        arrived_ms: Record time of the newest segment.
        silent: Whether the gap for the current silence is written.
        labels: The camera's labels in the newest segment.
        finished: Whether the newest segment is the last of a recording.
    """

    epoch: int = 0
    wall_us: int = 0
    anchored_us: int = 0
    least_us: int = 0
    watermark_us: int = 0
    origin_us: int = 0
    next_us: int = 0
    next_sample: int = 0
    heard_ms: int = 0
    arrived_ms: int = 0
    silent: bool = False
    labels: CameraLabels = field(default_factory=CameraLabels)
    finished: bool = False

    @property
    def open(self) -> bool:
        """Whether a segment may continue the epoch."""
        return self.epoch > 0 and not self.silent

    @classmethod
    def of(cls, kept: DecodeState) -> "Stream":
        """Build the stream from a checkpoint."""
        return cls(
            epoch=kept.epoch,
            wall_us=kept.wall_offset_us,
            anchored_us=kept.anchored_us,
            least_us=kept.least_offset_us,
            watermark_us=kept.watermark_us,
            origin_us=round(kept.epoch_pts * 1e6),
            next_us=round(kept.last_pts * 1e6),
            next_sample=kept.next_sample,
            heard_ms=kept.last_arrival_ms,
            arrived_ms=kept.arrived_ms,
            silent=kept.silent,
            labels=kept.labels,
            finished=kept.finished,
        )

    def message(self) -> DecodeState:
        """Convert the stream for a checkpoint."""
        return DecodeState(
            epoch=self.epoch,
            wall_offset_us=self.wall_us,
            anchored_us=self.anchored_us,
            least_offset_us=self.least_us,
            watermark_us=self.watermark_us,
            epoch_pts=self.origin_us / 1e6,
            last_pts=self.next_us / 1e6,
            next_sample=self.next_sample,
            last_arrival_ms=self.heard_ms,
            arrived_ms=self.arrived_ms,
            silent=self.silent,
            labels=self.labels if labelled(self.labels) else None,
            finished=self.finished,
        )

    @property
    def silence(self) -> str:
        """The reason for a gap after the newest segment: `silence` (an outage), or `ended` (a recording's
        end).
        """
        return "ended" if self.finished else "silence"

    def following(self, record: Record, decoded: DecodedSegment, now_ms: float) -> "Stream":
        """Return the stream at the start of the next epoch, which `record` opens.

        Args:
            record: The segment's record.
            decoded: The segment.
            now_ms: This machine's clock, Unix milliseconds.
        """
        epoch = self._next_epoch(record, int(now_ms))
        return Stream(epoch=epoch, wall_us=began_ms(record) * 1000, origin_us=decoded.facts.first_us)

    def is_ahead(self, now_ms: float) -> bool:
        """Return whether the epoch is so far ahead of this machine's clock that every reader rejects it."""
        return self.epoch // PER_MS > now_ms + EPOCH_AHEAD_MS > FIRST_NOW_MS

    def _next_epoch(self, record: Record, now_ms: int) -> int:
        """Return the next epoch's number, which is above the last epoch's and not ahead of this machine's
        clock.

        Readers check an epoch against this clock, and a broker's clock may be days ahead. The number includes
        the partition, so that epochs of one camera id in two partitions differ even if both open in the same
        millisecond.
        """
        # Epochs must increase, even if Kafka's time goes back or two epochs open in the same millisecond.
        before_ms = 0 if self.is_ahead(now_ms) else self.epoch // PER_MS
        arrived_ms = min(record.timestamp_ms, _LAST_MS)
        opened_ms = max(before_ms + 1, min(arrived_ms, now_ms) if now_ms > FIRST_NOW_MS else arrived_ms)
        return opened_ms * PER_MS + record.partition % PER_MS

    def anchored(self, record: Record, decoded: DecodedSegment, every_us: int) -> "Stream":
        """Return the stream; if `every_us` have passed since the last measurement, with its clock offset
        measured again.

        Segments arrive late but never early, so the smallest offset since the last measurement is the most
        accurate.
        """
        if self.watermark_us == 0:
            return self  # this segment opens the epoch, which set the offset
        start_us = decoded.end_stream_us - span_us(decoded)
        offset = began_ms(record) * 1000 - start_us
        least = min(offset, self.least_us) if self.least_us else offset
        if start_us - self.anchored_us < every_us:
            return replace(self, least_us=least)
        return replace(self, wall_us=least, anchored_us=start_us, least_us=0)

    def heard(self, record: Record, until_ms: int) -> "Stream":
        """Return the stream after a segment that ends at `until_ms` and arrived in `record`."""
        return replace(
            self,
            heard_ms=max(self.heard_ms, until_ms),
            arrived_ms=max(self.arrived_ms, record.timestamp_ms),
        )


def span_us(decoded: DecodedSegment) -> int:
    """Return the duration of a segment in microseconds."""
    return decoded.facts.end_us - decoded.facts.first_us


def captured_ms(record: Record) -> int | None:
    """Return the time of the first frame in Unix milliseconds; None if the producer does not report it.

    Raises:
        BadRecordError: The header is not a time in milliseconds.
    """
    stamp = headers.text(record.headers, headers.CAPTURED_AT)
    if not stamp:
        return None
    captured = headers.number(record.headers, headers.CAPTURED_AT)
    if captured is not None and _FIRST_MS <= captured < _LAST_MS:
        return captured
    if captured is None:
        fault = f"{clean(stamp, 60)!r}, not a whole number"
    else:
        unit = "seconds" if captured < _FIRST_MS else "microseconds or nanoseconds"
        fault = f"{captured}, perhaps {unit}"
    raise BadRecordError(
        "bad-captured-at",
        f"the header {headers.CAPTURED_AT} is {fault}: give milliseconds since 1970, of the years 2000 to "
        "2255, or omit the header if the camera has no clock",
    )


def began_ms(record: Record) -> int:
    """Return the time of the first frame in Unix milliseconds; if unknown, the time of the record."""
    captured = captured_ms(record)
    return record.timestamp_ms if captured is None else captured


def ended_ms(record: Record, decoded: DecodedSegment) -> int:
    """Return the end of a segment in Unix milliseconds, by the same clock as `began_ms`. If the camera
    reports no time, return the record's time, because a segment reaches Kafka after it has ended.
    """
    captured = captured_ms(record)
    return record.timestamp_ms if captured is None else captured + span_us(decoded) // 1000


def labels_of(record: Record) -> CameraLabels:
    """Return the camera's labels from a segment's headers.

    Raises:
        BadRecordError: A label is invalid.
    """
    try:
        return read_labels(record.headers)
    except WireError as error:
        raise BadRecordError("bad-labels", str(error)) from error


def late_end_us(stream: Stream, record: Record, decoded: DecodedSegment) -> int | None:
    """Return the stream time at which a late segment ends, by its producer's clock; None if the segment is
    not late.

    A segment that ends after the watermark is not late. A segment that ends before the epoch began is not
    late either: it means that the camera's clock was set back. Without a producer's clock, a segment never
    counts as late here.
    """
    captured = captured_ms(record)
    if captured is None:
        return None
    end_us = captured * 1000 - stream.wall_us + span_us(decoded)
    return end_us if 0 < end_us <= stream.watermark_us else None


def lost_before(stream: Stream, record: Record) -> bool:
    """Return whether retention removed records between the camera's newest segment and this one."""
    return record.loss is not None and 0 < stream.arrived_ms < record.loss.until_ms


def jump_of(stream: Stream, decoded: DecodedSegment) -> str:
    """Return the gap's reason for a jump of the clock: `clock-reset` (backwards) or `clock-jump`
    (forwards).
    """
    return "clock-reset" if decoded.facts.first_us < stream.next_us else "clock-jump"


def is_other_footage(stream: Stream, record: Record, decoded: DecodedSegment) -> bool:
    """Return whether a segment is from different footage than the previous one, by its producer's clock.

    The decision is based on the capture time; see `lookout.video.segments.is_other_footage`.
    """
    captured = captured_ms(record)
    if captured is None:
        return False
    overlap_us = stream.next_us - decoded.facts.first_us
    ahead_us = (captured - stream.heard_ms) * 1000 + overlap_us
    return segments.is_other_footage(overlap_us, ahead_us, continued=decoded.continued)
