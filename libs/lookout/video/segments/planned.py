"""Decodes no more of a segment than its samples need.

Time stamps and keyframe marks are known before anything is decoded, so the samples can be chosen first. Then
three kinds of pictures are skipped: unsampled pictures that nothing refers to, pictures after the last sample
of a group of pictures, and groups without a sample. The samples equal those of decoding everything, but
damage is counted only in decoded pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import av
import numpy as np

from lookout.video.segments.container import REORDER, Video, ticks_to_us
from lookout.video.segments.nal import begins_clean
from lookout.video.segments.skipping import decode_wanted
from lookout.video.segments.timeline import JUMP_US, Timeline
from lookout.video.segments.types import DecodeRequest


@dataclass(frozen=True, slots=True)
class PicturePlace:
    """Position of one picture: presentation index, segment time in microseconds."""

    index: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """When every picture of a segment is shown, from its packets alone.

    Attributes:
        packets: In decoding order.
        places: Picture positions by time stamp (ticks).
        order: Packet of each presentation index.
        timeline: Segment times of all pictures.
    """

    packets: Sequence[av.Packet]
    places: dict[int, PicturePlace]
    order: tuple[int, ...]
    timeline: Timeline

    @classmethod
    def of(cls, video: Video, packets: Sequence[av.Packet]) -> Timetable | None:
        """Build the timetable; None if time stamps do not tell the pictures apart: some are missing or
        repeated, the clock jumps, an edit list hides some, or pictures lead the first keyframe, which may not
        be decodable."""
        if video.clock is None or video.clock.jumps or video.clock.guessed:
            return None
        # Hidden pictures have no segment time.
        if any(map(video.hides, packets)):
            return None
        stamps = [packet.pts for packet in packets]
        pts = [stamp for stamp in stamps if stamp is not None]
        if not pts or len(pts) < len(packets) or len(set(pts)) < len(pts) or min(pts) < pts[0]:
            return None
        order = sorted(range(len(pts)), key=pts.__getitem__)
        if max(abs(packet - index) for index, packet in enumerate(order)) > REORDER:
            return None
        timeline, places = Timeline(video.fps, JUMP_US), {}
        for index, packet in enumerate(order):
            time_us, jump = timeline.add(ticks_to_us(pts[packet], video.time_base))
            if jump:
                return None
            places[pts[packet]] = PicturePlace(index, time_us)
        return cls(packets, places, tuple(order), timeline)

    def picks(
        self,
        request: DecodeRequest,
        offset_us: int,
        first_slot: int,
        end_us: int | None,
        damaged: frozenset[int] = frozenset(),
    ) -> dict[int, int]:
        """Choose the samples. Return their grid points, by time stamp.

        Args:
            request: What to sample.
            offset_us: Stream time of segment time 0.
            first_slot: Grid points below this one are already taken.
            end_us: The grid cell that contains this stream time stays empty; None: no cell stays empty.
            damaged: Time stamps of pictures that are used only if their grid point has no other picture.
        """
        pts = [self.packets[packet].pts or 0 for packet in self.order]
        times = [offset_us + time for time in self.timeline.times]
        if request.frames is not None:
            indices = (index for index in request.frames if index < len(pts))
            return {pts[index]: request.grid.slot(times[index]) for index in indices}
        keys = [self.packets[packet].is_keyframe for packet in self.order]
        corrupt = [stamp in damaged for stamp in pts]
        picks = request.grid.pick(times, keys, corrupt, first_slot=first_slot, end_us=end_us)
        return {pts[index]: slot for slot, index in picks}


@dataclass(frozen=True, slots=True)
class Run:
    """Packets [first, last] in decoding order; `drain`: the packets after the run are skipped, so the decoder
    must be drained and reset."""

    first: int
    last: int
    drain: bool


def runs_of(timetable: Timetable, codec: str, length: int, wanted: dict[int, int]) -> list[Run]:
    """Return the packets to decode, which are, for each group of pictures with a sample, those from its
    beginning to its last sample.
    """
    packets = timetable.packets
    pts = np.array([packet.pts for packet in packets], np.int64)
    starts = _starts(packets, pts, codec, length)
    sampled = np.flatnonzero([packet.pts in wanted for packet in packets])
    runs: list[Run] = []
    for first, end in zip(starts, [*starts[1:], len(packets)], strict=True):
        mine = sampled[(sampled >= first) & (sampled < end)]
        if not len(mine):
            continue
        last = int(mine[-1])
        complete = last == end - 1
        if runs and not runs[-1].drain:
            runs[-1] = Run(runs[-1].first, last, not complete)
        else:
            runs.append(Run(first, last, not complete))
    return runs


def _starts(packets: Sequence[av.Packet], pts: np.ndarray, codec: str, length: int) -> list[int]:
    """Return the packets at which decoding can begin and across which no picture is reordered."""
    shown_before = np.maximum.accumulate(pts)
    shown_after = np.minimum.accumulate(pts[::-1])[::-1]
    starts = [0]
    for at, packet in enumerate(packets):
        if not at or not packet.is_keyframe:
            continue
        closed = shown_before[at - 1] < pts[at] and shown_after[at] == pts[at]
        if closed and begins_clean(bytes(packet), codec, length):
            starts.append(at)
    return starts


def decode_runs(
    video: Video, timetable: Timetable, runs: Sequence[Run], wanted: dict[int, int], *, skip: bool
) -> Iterator[av.VideoFrame]:
    """Yield the pictures of the runs in presentation order; `skip`: omit unsampled pictures that nothing
    refers to."""
    for run in runs:
        packets = timetable.packets[run.first : run.last + 1]
        if skip:
            for frames in decode_wanted(video, packets, wanted):
                yield from frames
        else:
            for packet in packets:
                yield from video.decode(packet)
        if run.drain:
            yield from video.decode(None)
            video.context.flush_buffers()
    if runs and not runs[-1].drain:
        yield from video.decode(None)
