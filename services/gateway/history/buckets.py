"""Sums of verdicts per minute, hour and day, and a minute's single verdicts in packed form."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lookout.services.gateway.history.verdict_rows import LONGEST_MS, OUTCOMES, VerdictRow

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
LEVELS: Final = (MINUTE_MS, HOUR_MS, DAY_MS)
#: the table's columns that hold milliseconds per outcome, in the order of `OUTCOMES`
TIMES: Final = tuple(f"{outcome.value}_ms" for outcome in OUTCOMES)

#: a packed piece of a minute: begin and end in milliseconds within the minute, index of the outcome (plus 8
#: if a verdict ends here), p(yes)
_PIECE: Final = struct.Struct("<HHBf")
_ENDS: Final = 8


class Detail(NamedTuple):
    """A piece of a minute that one verdict covers, in Unix milliseconds. `ends`: whether the verdict ends in
    this piece.
    """

    start_ms: int
    end_ms: int
    outcome: int
    ends: bool
    p_yes: float


@dataclass(slots=True)
class Bucket:
    """The sums of one span of time."""

    verdicts: int = 0
    answers: int = 0
    p_sum: float = 0.0
    p_max: float = 0.0
    times: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    shared: float = 0.0
    own: float = 0.0
    device_us: int = 0
    partition: int = 0
    first: int = -1
    last: int = -1
    detail: bytearray | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns of the bucket's row."""
        return {
            "verdicts": self.verdicts,
            "answers": self.answers,
            "p_sum": self.p_sum,
            "p_max": self.p_max,
            **dict(zip(TIMES, self.times, strict=True)),
            "shared": self.shared,
            "own": self.own,
            "device_us": self.device_us,
            "partition": self.partition,
            "first": self.first,
            "last": self.last,
            "detail": None if self.detail is None else bytes(self.detail),
        }


def bucket_of(row: Any) -> Bucket:
    """Return the bucket that a row of the table stores."""
    return Bucket(
        row.verdicts,
        row.answers,
        row.p_sum,
        row.p_max,
        [getattr(row, name) for name in TIMES],
        row.shared,
        row.own,
        row.device_us,
        row.partition,
        row.first,
        row.last,
        None if row.detail is None else bytearray(row.detail),
    )


def pieces(row: VerdictRow, newest_ms: int) -> Iterator[tuple[int, int, int, bool]]:
    """Split a verdict into pieces by minute.

    Windows overlap, so each window counts only for time that no earlier window covered
    (`rules.coverage_intervals`).

    Args:
        row: The verdict.
        newest_ms: Unix milliseconds up to which earlier verdicts cover the series.

    Yields:
        The begin of the minute, the begin and end of the piece, and whether the verdict ends in it.
    """
    last = (row.end_ms - 1) // MINUTE_MS * MINUTE_MS if row.end_ms > 0 else 0
    start = max(row.start_ms, newest_ms, row.end_ms - LONGEST_MS)
    if start >= row.end_ms:  # the verdict covers no new time, but counts as a verdict
        yield last, row.end_ms, row.end_ms, True
        return
    while True:
        minute = start // MINUTE_MS * MINUTE_MS
        end = min(row.end_ms, minute + MINUTE_MS)
        yield minute, start, end, minute == last
        if minute == last:
            return
        start = end


def covered_until(row: VerdictRow, newest_ms: int) -> int:
    """Return the time (Unix milliseconds) up to which a series is covered once a verdict is counted."""
    return max(newest_ms, row.end_ms) if row.start_ms < row.end_ms else newest_ms


def add(bucket: Bucket, row: VerdictRow, covered_ms: int, at: tuple[int, int], *, ends: bool) -> None:
    """Add a piece of a verdict to a bucket; `at` is the partition and offset of the verdict's record."""
    bucket.times[row.outcome] += covered_ms
    if not ends:
        return
    bucket.verdicts += 1
    bucket.shared += row.shared
    bucket.own += row.own
    bucket.device_us += row.device_us
    partition, offset = at
    # If the camera changed its partition, only the newer records count.
    if bucket.first < 0 or partition != bucket.partition:
        bucket.partition, bucket.first = partition, offset
    bucket.last = offset
    if row.p_yes == row.p_yes:
        bucket.answers += 1
        bucket.p_sum += row.p_yes
        bucket.p_max = max(bucket.p_max, row.p_yes)


def add_detail(bucket: Bucket, row: VerdictRow, minute: int, start: int, end: int, *, ends: bool) -> None:
    """Append a piece of a verdict to a minute's detail."""
    if bucket.detail is None:
        bucket.detail = bytearray()
    code = row.outcome | (_ENDS if ends else 0)
    bucket.detail += _PIECE.pack(start - minute, end - minute, code, row.p_yes)


def details(minute: int, data: bytes) -> Iterator[Detail]:
    """Yield the pieces in a minute's detail, in the topic's order."""
    for start, end, code, p_yes in _PIECE.iter_unpack(data):
        yield Detail(minute + start, minute + end, code & ~_ENDS, bool(code & _ENDS), p_yes)


def fine_buckets(minute: int, data: bytes, size_ms: int) -> dict[int, Bucket]:
    """Return a minute's sums per span of `size_ms`, by the spans' begins.

    Args:
        minute: Begin of the minute.
        data: The minute's detail.
        size_ms: Length of a span in milliseconds; must divide a minute.
    """
    spans: dict[int, Bucket] = {}
    for piece in details(minute, data):
        start = piece.start_ms
        while start < piece.end_ms:
            span = start // size_ms * size_ms
            end = min(piece.end_ms, span + size_ms)
            spans.setdefault(span, Bucket()).times[piece.outcome] += end - start
            start = end
        if piece.ends:
            bucket = spans.setdefault((piece.end_ms - 1) // size_ms * size_ms, Bucket())
            bucket.verdicts += 1
            if not math.isnan(piece.p_yes):
                bucket.answers += 1
                bucket.p_sum += piece.p_yes
                bucket.p_max = max(bucket.p_max, piece.p_yes)
    return spans
