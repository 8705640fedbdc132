"""Clips: a range of a recording as a separate file with the original packets."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, pairwise

import av
import av.error
import numpy as np

from lookout.video.files.packets import PacketReader
from lookout.video.files.parallel import Scan
from lookout.video.files.source import Source
from lookout.video.files.table import FrameTable, holes_of
from lookout.video.segments.container import Video
from lookout.video.segments.cutting import MOV_CODECS, MP4_CODECS
from lookout.video.segments.nal import length_bytes
from lookout.video.segments.sets import with_sets
from lookout.video.segments.types import CodecError, Limits, Reason

CLIP_BYTES = 256 * 1024 * 1024
"""Maximum bytes of a clip, of which a decoder process keeps three copies in memory."""
CLIP_CONTAINERS = {
    **dict.fromkeys(MOV_CODECS, "mov"),
    **dict.fromkeys(MP4_CODECS, "mp4"),
    "vp8": "webm",  # browsers play VP8 in WebM
}
_MICROSECONDS = Fraction(1, 1_000_000)


@dataclass(frozen=True, slots=True)
class RecordingClip:
    """A playable range of a recording, without sound.

    Attributes:
        data: The file.
        start_us: Time of its first picture, counted from the recording's first picture.
        end_us: Time at which its last picture ends, counted from the recording's first picture.
        frames: Pictures that it shows.
        container: mp4, or mov or webm for codecs that MP4 cannot carry.
    """

    data: bytes = field(repr=False)
    start_us: int
    end_us: int
    frames: int
    container: str


@dataclass(frozen=True, slots=True)
class _Range:
    """Packets [first, last] in decoding order, except those in `dropped`. `shown`: presentation indexes of
    the pictures that the clip shows."""

    first: int
    last: int
    dropped: frozenset[int]
    shown: range
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class _Stamps:
    """Time stamps of a clip's packets in ticks, by packet number; the first picture is shown at 0."""

    time_base: Fraction
    pts: dict[int, int]
    dts: dict[int, int]
    duration: int | None  # the same for every packet; None: as each packet states


def clip(
    source: Source, limits: Limits, scan: Scan, range_us: tuple[int, int], max_bytes: int = CLIP_BYTES
) -> RecordingClip:
    """Cut a range of a recording into a file that plays on its own, without re-encoding and without sound.

    The clip begins with the last keyframe before the range; if there is none, with the first keyframe in the
    range. It ends with the last picture before the range's end. Pictures that are stored before that picture
    are included, so the clip may end a few pictures later.

    Args:
        source: The recording.
        limits: Limits on what is read.
        scan: The recording's packets.
        range_us: Begin and end (excluded) of the range, counted from the recording's first picture.
        max_bytes: Maximum bytes of the clip.

    Raises:
        CodecError: The range cannot be cut: REQUEST, NO_KEYFRAME, NO_DECODER, BYTES or UNREADABLE.
    """
    run = _range_of(scan.table, *range_us)
    size = int(scan.table.size[run.first : run.last + 1].sum())
    if size > max_bytes:
        raise CodecError(
            Reason.BYTES,
            f"the clip from {run.start_us / 1e6:g} s to {run.end_us / 1e6:g} s would have {size} "
            f"bytes, but the limit is {max_bytes}: choose a shorter range",
        )
    with PacketReader(source, limits, scan.table, probe=not scan.indexed, seek=scan.steady) as reader:
        packets = reader.packets(run.first, run.last)
        first = next(packets)  # a seek may open the video again
        data, container = _muxed(reader.video, scan, run, first, packets)
    return RecordingClip(data, run.start_us, run.end_us, len(run.shown), container)


def _range_of(table: FrameTable, start_us: int, end_us: int) -> _Range:
    """Return the packets of a range.

    Raises:
        CodecError: The range has no picture, or its packets cannot form a clip.
    """
    order, times = table.times()
    if end_us <= start_us or end_us <= 0 or not times or start_us > times[-1]:
        raise CodecError(Reason.REQUEST, f"it has no picture from {start_us / 1e6:g} s to {end_us / 1e6:g} s")
    begin = max(0, int(np.searchsorted(times, start_us, side="right")) - 1)
    end = int(np.searchsorted(times, end_us, side="left"))
    first = _keyframe(table, order, begin, end)
    # Pictures that a player shows before the first keyframe refer to pictures before it.
    leading = np.flatnonzero(table.pts[first:] < table.pts[first]) + first if table.ordered else order[:0]
    inside = (order >= first) & ~np.isin(order, leading)
    begin = int(np.flatnonzero(inside)[0])
    last = _last(order, begin, end)
    dropped = frozenset(int(packet) for packet in leading if packet <= last)
    stop = int(np.flatnonzero(order <= last)[-1]) + 1
    nominal_us = round(1e6 / table.fps)
    end_time = times[stop] if stop < len(times) else times[-1] + nominal_us
    hole = next((hole for hole in holes_of(times, nominal_us) if hole.index == stop), None)
    end_time = hole.start_us if hole is not None else end_time
    run = _Range(first, last, dropped, range(begin, stop), times[begin], end_time)
    _check_hidden(table, run, int(order[begin]))
    return run


def _keyframe(table: FrameTable, order: np.ndarray, begin: int, end: int) -> int:
    """Return the packet with which a clip of the pictures [begin, end) begins.

    Raises:
        CodecError: With NO_KEYFRAME: there is no keyframe before the range or in it.
    """
    clean = np.flatnonzero(table.clean)
    packet = int(order[begin])
    before = clean[clean <= packet]
    if table.ordered:
        before = before[table.pts[before] <= table.pts[packet]]
    if len(before):
        return int(before[-1])
    behind = clean[np.isin(clean, order[begin:end])]
    if not len(behind):
        raise CodecError(Reason.NO_KEYFRAME, "there is no keyframe before the range or in it")
    return int(behind[0])


def _last(order: np.ndarray, begin: int, end: int) -> int:
    """Return the last packet needed for the pictures [begin, end) and for all pictures shown between them."""
    last = int(order[begin : max(end, begin + 1)].max())
    while True:
        # A picture stored before `last` may be shown after pictures that are stored later.
        newest = int(np.flatnonzero(order <= last)[-1])
        further = int(order[begin : newest + 1].max())
        if further == last:
            return last
        last = further


def _check_hidden(table: FrameTable, run: _Range, shown: int) -> None:
    """Reject a range in which an edit list hides a picture after the first one shown, because a clip can only
    hide pictures at its beginning.

    Raises:
        CodecError: With REQUEST.
    """
    hidden = np.flatnonzero(table.discard[run.first : run.last + 1]) + run.first
    behind = [i for i in hidden.tolist() if i not in run.dropped and i > shown]
    if any(table.pts[i] > table.pts[shown] for i in behind):
        raise CodecError(
            Reason.REQUEST,
            f"an edit list hides pictures within the range ({run.start_us / 1e6:g} s to "
            f"{run.end_us / 1e6:g} s), which a clip cannot do; choose a shorter range without them",
        )


def _stamps(table: FrameTable, run: _Range, packets: list[int], reordering: bool) -> _Stamps:
    """Return the time stamps of a clip's packets: the source's, or nominal ones if the source has none or its
    clock jumps.

    Raises:
        CodecError: The source does not say in which order its pictures are shown.
    """
    order, times = table.times()
    begin, stop = run.shown.start, run.shown.stop
    zero = int(table.pts[order[begin]])
    length = int(table.pts[order[stop - 1]]) - zero if table.ordered else 0
    if table.ordered and abs(float(length * table.time_base) * 1e6 - (times[stop - 1] - times[begin])) < 2:
        pts = {i: int(table.pts[i]) - zero for i in packets}
        dts = {i: int(table.dts[i]) - zero for i in packets}
        rising = all(early < late for early, late in pairwise(dts.values()))
        plain = rising and all(dts[i] <= pts[i] for i in packets)
        return _Stamps(table.time_base, pts, dts if plain else _decoding_times(pts), None)
    if not table.ordered and reordering:
        raise CodecError(
            Reason.REQUEST,
            "it has no usable time stamps, and its pictures may be shown in another order than stored; "
            "encode it again to make a clip",
        )
    shown = {int(order[i]): times[i] - times[begin] for i in run.shown}
    pts = {i: shown[i] for i in packets if i in shown}
    return _Stamps(_MICROSECONDS, pts, _decoding_times(pts), round(1e6 / table.fps))


def _decoding_times(pts: dict[int, int]) -> dict[int, int]:
    """Return increasing decoding times, early enough that no picture is shown before it is decoded."""
    ordered = sorted(pts.values())
    delay = max(late - early for late, early in zip(ordered, pts.values(), strict=True))
    return {i: time - delay for i, time in zip(pts, ordered, strict=True)}


def _muxed(
    video: Video, scan: Scan, run: _Range, first: av.Packet, packets: Iterator[av.Packet]
) -> tuple[bytes, str]:
    """Mux the packets; return the file and its container."""
    table, changing = scan.table, scan.changing
    container = CLIP_CONTAINERS.get(video.codec)
    if container is None:
        raise CodecError(Reason.NO_DECODER, f"{video.codec} video cannot be cut without encoding it again")
    numbers = [i for i in range(run.first, run.last + 1) if i not in run.dropped]
    stamps = _stamps(table, run, numbers, bool(video.context.has_b_frames))
    buffer = io.BytesIO()
    # An edit list expresses negative decoding times; shifting them would move the pictures.
    with av.open(buffer, "w", format=container, options={"avoid_negative_ts": "disabled"}) as out:
        target = out.add_stream_from_template(video.stream, opaque=True)
        target.time_base = stamps.time_base
        if video.codec == "hevc":
            # Apple's players accept only hvc1, but hvc1 allows no parameter sets among the packets.
            target.codec_context.codec_tag = "hev1" if changing else "hvc1"
        number, length = run.first, length_bytes(video.context.extradata, video.codec)
        try:
            for source_packet in chain([first], packets):
                if number in stamps.pts:
                    packet = with_sets(source_packet, length)
                    packet.pts, packet.dts = stamps.pts[number], stamps.dts[number]
                    packet.time_base = stamps.time_base
                    if stamps.duration is not None:
                        packet.duration = stamps.duration
                    packet.stream = target
                    out.mux_one(packet)
                number += 1
        except (av.error.FFmpegError, ValueError) as error:
            raise CodecError(
                Reason.UNREADABLE, f"its {video.codec} packets could not be put into {container} ({error})"
            ) from None
    return buffer.getvalue(), container
