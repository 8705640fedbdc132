"""Limits the bytes, decoding time and failures of a camera per interval of record time."""

from dataclasses import dataclass, replace
from typing import Self

from lookout.runtime.worker import LeftOut, Output, Record, quota_letter
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.state_pb2 import Quota
from lookout.wire import SEGMENTS, Stage, dead_letters


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Limits for one camera per `interval_s` seconds of record time; None: no limit.

    `bytes` limits the total size of the camera's segments, `work_s` the seconds that they occupy a decoder,
    and `failures` the camera's dead letters.
    """

    interval_s: float
    bytes: int | None
    work_s: float | None
    failures: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a camera has used since `since_ms` (record time, Unix milliseconds)."""

    since_ms: int = 0
    bytes: int = 0
    work_us: int = 0
    failures: int = 0

    @classmethod
    def of(cls, kept: Quota) -> Self:
        """Build the usage from a checkpoint."""
        return cls(kept.since_ms, kept.bytes, kept.work_us, kept.failures)

    def message(self) -> Quota:
        """Convert the usage for a checkpoint."""
        return Quota(since_ms=self.since_ms, bytes=self.bytes, work_us=self.work_us, failures=self.failures)

    def at(self, now_ms: int, limits: QuotaLimits) -> "Usage":
        """Return this usage, or an empty one if the interval is over at `now_ms`."""
        # Intervals are fixed, not sliding, so that a checkpoint needs only one number per limit.
        over = now_ms - self.since_ms >= limits.interval_s * 1000
        return Usage(since_ms=now_ms) if over else self

    def add(self, *, size: int = 0, work_s: float = 0.0, failures: int = 0) -> "Usage":
        """Return the usage with these amounts added."""
        return replace(
            self,
            bytes=self.bytes + size,
            work_us=self.work_us + round(work_s * 1e6),
            failures=self.failures + failures,
        )

    def exceeded(self, limits: QuotaLimits) -> str | None:
        """Return a sentence about the limit that is used up; None if no limit is."""
        over = f"within {limits.interval_s:g} s"
        if limits.bytes is not None and self.bytes >= limits.bytes:
            return f"quota: {self.bytes} bytes {over}, the limit is {limits.bytes}"
        if limits.work_s is not None and self.work_us >= limits.work_s * 1e6:
            return f"quota: {self.work_us / 1e6:.1f} s of decoding {over}, the limit is {limits.work_s:g} s"
        if limits.failures is not None and self.failures >= limits.failures:
            return f"quota: {self.failures} failed segments {over}, the limit is {limits.failures}"
        return None


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    """Counts the skipped segments that no dead letter has reported yet. `since_ms` is the record time of the
    first one.
    """

    segments: LeftOut | None = None
    since_ms: int = 0

    @classmethod
    def of(cls, kept: Quota) -> Self:
        """Build the count from a checkpoint."""
        if not kept.left_out:
            return cls()
        first = kept.first_left_out
        segments = LeftOut(first.topic, first.partition, first.offset, kept.last_left_out, kept.left_out)
        return cls(segments, kept.left_out_since_ms)

    def fill(self, quota: Quota) -> None:
        """Write the count into a checkpoint's quota."""
        if self.segments is None:
            return
        segments = self.segments
        first = RecordRef(topic=segments.topic, partition=segments.partition, offset=segments.first)
        quota.first_left_out.CopyFrom(first)
        quota.last_left_out = segments.last
        quota.left_out = segments.count
        quota.left_out_since_ms = self.since_ms

    def add(self, record: Record) -> "LeftOutCount":
        """Return the count with one more segment."""
        before, at = self.segments, record.offset
        if before is None:
            return LeftOutCount(LeftOut(record.topic, record.partition, at, at, 1), record.timestamp_ms)
        return replace(self, segments=replace(before, last=at, count=before.count + 1))

    def letter(self, camera: str, why: str) -> Output:
        """Make the dead letter that reports these segments; there must be at least one.

        Args:
            camera: The camera's id.
            why: Why the newest of these segments was skipped; empty: unknown.
        """
        segments = self.segments
        assert segments is not None
        detail = (
            f"{segments.count} segments were skipped, the first at offset {segments.first}, the last at "
            f"offset {segments.last}: {why or 'the camera or its tenant was over a quota'}"
        )
        topic = dead_letters(SEGMENTS).name
        return quota_letter(segments, camera, detail, stage=Stage.DECODE.value, topic=topic)

    def due(self, now_ms: float, limits: QuotaLimits) -> bool:
        """Return whether the dead letter is due: segments were skipped, and at `now_ms` the interval since
        the first one is over or the clock was set back by at least an interval.
        """
        return self.segments is not None and abs(now_ms - self.since_ms) >= limits.interval_s * 1000
