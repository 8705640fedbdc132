"""Cuts streams at keyframes without re-encoding, so that every piece can be decoded on its own."""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import av
import av.error
import numpy as np
from av.bitstream import BitStreamFilterContext

from lookout.video.segments.clock import decodable
from lookout.video.segments.container import ByteSource, Video, missing_packets, source_size, ticks_to_us
from lookout.video.segments.damage import CounterScan, with_breaks, with_damage
from lookout.video.segments.edits import MOVIE_SCALE, Edit, with_edit
from lookout.video.segments.nal import begins_clean, length_bytes
from lookout.video.segments.picture import turn_of
from lookout.video.segments.sets import with_sets
from lookout.video.segments.timeline import BACKWARD_US, MAX_GAP_US
from lookout.video.segments.types import CodecError, Limits, Reason, Segment

TS_CODECS = frozenset({"h264", "hevc", "mpeg2video", "mpeg1video", "mpeg4"})
MP4_CODECS = frozenset({*TS_CODECS, "av1", "vp9", "vvc"})
MOV_CODECS = frozenset({"h263", "mjpeg", "vp8"})
# Elementary streams have no time stamps either.
RAW_FORMATS = {
    "h264": "h264",
    "hevc": "hevc",
    "mpeg4": "m4v",
    "mpeg2video": "mpeg2video",
    "mpeg1video": "mpeg1video",
    "mjpeg": "mjpeg",
}
# Every piece carries its decoder's headers, even if its keyframe is not an IDR picture.
REPEAT_HEADERS = {
    "h264": "h264_mp4toannexb,dump_extra=freq=keyframe",
    "hevc": "hevc_mp4toannexb,dump_extra=freq=keyframe",
    "mpeg4": "dump_extra=freq=keyframe",
    "mpeg2video": "dump_extra=freq=keyframe",
    "mpeg1video": "dump_extra=freq=keyframe",
}
_FRAGMENTED = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+frag_discont",
    "avoid_negative_ts": "disabled",
    "use_editlist": "0",
}
TS_PID = 0x100  # the video's packet identifier
MUXER_OPTIONS = {
    # A piece is short, so its tables need not be repeated.
    "mpegts": {
        "mpegts_copyts": "1",
        "avoid_negative_ts": "disabled",
        "pat_period": "60",
        "sdt_period": "60",
        "mpegts_start_pid": str(TS_PID),
    },
    "mp4": _FRAGMENTED,
    "mov": _FRAGMENTED,
}
# Without fragments: only complete files can have an edit list.
_WITH_EDIT_LIST = {"avoid_negative_ts": "disabled", "movie_timescale": str(MOVIE_SCALE)}
TS_NULL_PACKET = b"\x47\x1f\xff\x10" + b"\xff" * 184
TS_LEAST_PACKETS = 32  # shorter streams are not recognised as MPEG-TS
_FILES = ("mp4", "mov")  # containers that store the decoder's headers outside the packets
OPEN_LIMITS = Limits(bytes=1 << 40)


@dataclass(slots=True)
class _Group:
    """A keyframe and the packets up to the next keyframe, in decoding order; times are the source's, in
    microseconds."""

    key_us: int
    nominal_us: int
    timed: bool
    clean: bool  # decoding can begin here; otherwise the picture builds up slowly (intra refresh)
    packets: list[av.Packet] = field(default_factory=list)
    losses: list[bool] = field(default_factory=list)  # by packet: some of its bytes were lost
    shift: int = 0  # ticks added to its stamps because the source's clock jumped
    jump: bool = False  # the source's clock jumped before it, or a long hole precedes it
    size: int = 0  # bytes, with an allowance for the container
    times_us: list[int] = field(default_factory=list)  # of pictures that are not hidden
    hidden_us: int | None = None  # the latest hidden picture
    key_hidden: bool = False

    def add(self, packet: av.Packet, time_us: int, *, loss: bool, hidden: bool) -> None:
        """Add the next packet; `hidden`: it is decoded but not shown."""
        self.packets.append(packet)
        self.losses.append(loss)
        # An MPEG-TS packet carries up to 184 bytes; three more packets hold a picture's headers and clock
        # references.
        self.size += 188 * (packet.size // 180 + 3)
        if hidden:
            self.key_hidden = self.key_hidden or len(self.packets) == 1
            self.hidden_us = time_us if self.hidden_us is None else max(self.hidden_us, time_us)
            return
        self.times_us.append(time_us)

    def follow(self, end_us: int | None, shift: int) -> int | None:
        """Set `jump` once the group is complete: whether the clock jumped before it.

        Args:
            end_us: When the groups before it end; None if none of their pictures is shown.
            shift: `shift` of the previous group.

        Returns:
            When the groups up to this one end.
        """
        if not self.shown:
            return end_us
        self.jump = end_us is not None and (
            self.shift != shift or not -BACKWARD_US <= self.start_us - end_us <= MAX_GAP_US
        )
        return self.end_us

    @property
    def shown(self) -> int:
        """Number of pictures that are not hidden."""
        return len(self.times_us)

    @property
    def first_us(self) -> int:
        """Time of the earliest picture that is not hidden."""
        return min(self.times_us)

    @property
    def last_us(self) -> int:
        """Time of the latest picture that is not hidden. B-frames are shown before the packet that precedes
        them."""
        return max(self.times_us)

    @property
    def start_us(self) -> int:
        """Time of its keyframe or, if an edit list hides the keyframe, of the first picture shown."""
        return self.first_us if self.shown and self.key_hidden else self.key_us

    @property
    def alone(self) -> bool:
        """Whether none of its shown pictures refers to the previous group."""
        return self.clean and not (self.shown and self.first_us < self.key_us)

    @property
    def ends_hidden(self) -> bool:
        """Whether pictures after the last one shown are hidden."""
        return self.hidden_us is not None and self.shown > 0 and self.hidden_us > self.last_us

    @property
    def end_us(self) -> int:
        """When its last frame ends, assuming that it lasts as long as its frames usually do."""
        step = int(np.median(np.diff(sorted(self.times_us)))) if self.shown > 1 else self.nominal_us
        return self.last_us + max(1, step)


def cut(
    source: Path | str | BinaryIO,
    *,
    target_s: float = 2.0,
    max_bytes: int = 15 * 1024 * 1024,
    keyframes: int | None = None,
    broken_off: Callable[[str], object] | None = None,
) -> Iterator[Segment]:
    """Cut a file or stream (also a pipe) at keyframes without re-encoding; yield each segment when it is
    complete.

    A piece ends at the first keyframe at or after `target_s` seconds, or, with `keyframes`, after that many
    of them; it ends earlier if it would grow beyond `max_bytes`. Packets before the first keyframe are
    dropped. A piece also ends at the first keyframe at or after a jump of the clock, which takes no time, and
    before a hole of more than half a minute, which keeps its length.

    Time stamps are the source's, moved by one constant if decoding times begin below zero. Missing and wrong
    ones are corrected (`StreamClock`). If the source has no time stamps (elementary streams), the pieces have
    none.

    Leading pictures stay after their keyframe; those that refer to the previous piece are lost, as the counts
    show when the piece is decoded. Pictures that an edit list hides stay hidden: if a piece needs them for
    decoding, it gets its own edit list, and times begin with the first picture shown.

    If the source ends early, `broken_off` is called with the reason after the last piece. Errors:
    `CodecError` (with BYTES if a single group of pictures exceeds `max_bytes`).
    """
    if target_s <= 0 or max_bytes <= 0 or (keyframes is not None and keyframes < 1):
        raise CodecError(Reason.REQUEST, "target_s, max_bytes and keyframes must be positive")
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            yield from _cut(cast(ByteSource, file), target_s, max_bytes, keyframes, broken_off)
    else:
        yield from _cut(cast(ByteSource, source), target_s, max_bytes, keyframes, broken_off)


def _cut(
    source: ByteSource,
    target_s: float,
    max_bytes: int,
    keyframes: int | None,
    broken_off: Callable[[str], object] | None,
) -> Iterator[Segment]:
    scanned = _ScannedSource(source)
    with Video(scanned, vectors=False, limits=OPEN_LIMITS, recording=True) as video:
        breaks = scanned.follow(video.stream.id) if video.container == "mpegts" else scanned.leave()
        writer = _Writer(video, max_bytes)
        written = False
        for groups, following in _shares(_groups(video, breaks), target_s, max_bytes, keyframes):
            yield writer.write(groups, following)
            written = True
        if not written:
            raise _no_segment(video, scanned)
        why = video.damage or missing_packets(video.listed, video.demuxed)
        if why and broken_off is not None:
            broken_off(why)


def _no_segment(video: Video, source: ByteSource) -> CodecError:
    """Return the error for a stream that gave no segment."""
    if not video.demuxed and video.container == "mp4" and source_size(source) is None:
        return CodecError(
            Reason.UNREADABLE,
            "the index (moov) of this MP4 comes after its pictures, and a pipe cannot seek back: give the "
            "file itself, or write it with -movflags faststart, or frag_keyframe+empty_moov",
        )
    why = f" ({video.damage})" if video.damage else ""
    return CodecError(Reason.NO_KEYFRAME, f"the {video.codec} stream has no keyframe{why}")


class _ScannedSource:
    """A source whose continuity counters are checked while FFmpeg reads it, because a pipe can be read only
    once.

    FFmpeg may first seek to the end, to learn a file's length. Only bytes that continue what was read before
    are checked.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._at = 0
        self._read_to = 0
        self._early: list[bytes] = []  # read before the stream's identifier was known
        self._scan: CounterScan | None = None
        self._left = False

    def follow(self, pid: int) -> deque[int]:
        """Check the counters of a stream, from the source's beginning on.

        Returns:
            `CounterScan.breaks`, which grows while the source is read.
        """
        self._scan = CounterScan(pid)
        self._scan.take(b"".join(self._early))
        self._early = []
        return self._scan.breaks

    def leave(self) -> deque[int]:
        """Do not check counters, because the container has none."""
        self._left, self._early = True, []
        return deque()

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes."""
        data = self._source.read(size)
        begin, self._at = self._at, self._at + len(data)
        if not self._left and begin <= self._read_to < self._at:
            following = data[self._read_to - begin :]
            self._read_to = self._at
            if self._scan is not None:
                self._scan.take(following)
            else:
                self._early.append(following)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position."""
        self._source.seek(offset, whence)
        self._at = self._source.tell()
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seekable(self) -> bool:
        """Whether the source can be read from another position."""
        seekable = getattr(self._source, "seekable", None)
        return seekable is None or bool(seekable())


def _shares(
    groups: Iterator[_Group], target_s: float, max_bytes: int, keyframes: int | None
) -> Iterator[tuple[list[_Group], _Group | None]]:
    """Yield the groups of every piece and the group that follows them; None after the last piece."""
    piece: list[_Group] = []
    hidden: list[_Group] = []  # fully hidden groups that follow those of the piece
    for group in groups:
        if piece and not group.shown:
            hidden.append(group)
            continue
        shown = any(member.shown for member in piece)
        if shown and (hidden or _full(piece, group, target_s, max_bytes, keyframes)):
            yield piece, group
            piece, shown = [], False
        # Hidden groups are kept only if shown pictures refer to them.
        piece = [group] if group.alone and not shown else [*piece, *hidden, group]
        hidden = []
    if piece:
        yield piece, None


def _full(
    groups: list[_Group], following: _Group, target_s: float, max_bytes: int, keyframes: int | None
) -> bool:
    """Whether the open groups should form a piece, so that `following` begins the next piece."""
    begin = next(group for group in groups if group.shown)
    # A piece has only one edit, so hidden pictures between shown ones must be at the end of a piece.
    if groups[-1].ends_hidden or following.key_hidden:
        return True
    if following.jump or sum(g.size for g in groups) + following.size > max_bytes:
        return True
    if not following.clean:
        return False
    if keyframes is not None:
        return sum(g.clean for g in groups) >= keyframes
    # Half a frame of tolerance: with clock jitter, 1.999 s counts as two seconds.
    return following.start_us - begin.start_us >= target_s * 1e6 - following.nominal_us / 2


def _groups(video: Video, breaks: deque[int]) -> Iterator[_Group]:
    """Yield groups of packets that each begin with a keyframe. Packets before the first keyframe are
    dropped."""
    group: _Group | None = None
    end_us: int | None = None  # of the groups before
    shift = 0
    packets = with_damage(_without_hidden_end(video), breaks)
    for position, (packet, loss) in enumerate(packets):
        nominal_us = round(1_000_000 / video.fps)
        timed = packet.pts is not None or packet.dts is not None
        pts = packet.pts if packet.pts is not None else packet.dts
        time_us = ticks_to_us(pts, video.time_base) if pts is not None else position * nominal_us
        if packet.is_keyframe:
            if group is not None:
                end_us, shift = group.follow(end_us, shift), group.shift
                yield group
            clean = begins_clean(bytes(packet), video.codec, video.sets.length)
            group = _Group(time_us, nominal_us, timed, clean)
            group.shift = video.clock.shift_of(packet) if video.clock is not None else 0
        if group is not None:
            group.add(packet, time_us, loss=loss, hidden=video.hides(packet))
    if group is not None:
        group.follow(end_us, shift)
        yield group


def _without_hidden_end(video: Video) -> Iterator[av.Packet]:
    """Yield the packets without the hidden ones at the end. Hidden packets before shown ones stay, because
    the shown ones may need them."""
    hidden: list[av.Packet] = []
    for packet in video.packets():
        hidden.append(packet)
        if not video.hides(packet):
            yield from hidden
            hidden = []


class _Writer:
    """Muxes groups into pieces, and keeps one clock for all of them."""

    def __init__(self, video: Video, max_bytes: int) -> None:
        self._video, self._max_bytes = video, max_bytes
        self._nominal = round(1 / (video.fps * video.time_base))  # ticks of a picture
        self._index = 0
        self._clock_us = 0
        self._shift: int | None = None  # ticks added so that no decoding time is negative
        self._jump = False
        self._turned: bool | None = None

    def write(self, groups: list[_Group], following: _Group | None) -> Segment:
        """Write these groups as one piece.

        Raises:
            CodecError: With BYTES, UNREADABLE, or NO_DECODER (for a codec that no container can carry).
        """
        packets = [packet for group in groups for packet in group.packets]
        own = -groups[0].shift  # back to the source's clock
        losses = [loss for group in groups for loss in group.losses]
        edit = Edit.of(self._video, packets, self._nominal)
        frames = len(packets) if edit is None else sum(not self._video.hides(packet) for packet in packets)
        container = self._container(groups[0], edited=edit is not None)
        try:
            data = self._mux(packets, losses, container, edit, own)
        except (av.error.FFmpegError, ValueError, OverflowError, struct.error) as error:
            raise CodecError(
                Reason.UNREADABLE, f"{self._video.codec} packets could not be put into {container} ({error})"
            ) from None
        if len(data) > self._max_bytes:
            raise CodecError(
                Reason.BYTES,
                f"{len(packets)} frames between two keyframes take {len(data)} bytes; the limit is "
                f"{self._max_bytes}: let the camera send keyframes more often, or raise the limit",
            )
        start_us = groups[0].start_us
        final = following is None or following.jump
        end_us = groups[-1].end_us if final or following is None else following.start_us
        if edit is not None and edit.hides_begin:
            start_us = ticks_to_us(edit.begin, self._video.time_base)
        if edit is not None and edit.hides_end and final:
            end_us = ticks_to_us(edit.end, self._video.time_base)
        duration = max(groups[0].nominal_us, end_us - start_us)
        piece = Segment(data, self._clock_us, duration, frames, self._index, container, self._jump)
        self._index += 1
        self._clock_us += duration
        self._jump = following is not None and following.jump
        if following is not None and following.jump:
            self._clock_us += max(0, following.start_us - groups[-1].end_us)
        return piece

    def _container(self, first: _Group, edited: bool) -> str:
        codec = self._video.codec
        if self._turned is None:
            # Only MP4 can store a rotation; the first keyframe shows whether there is one.
            self._turned = turn_of(self._video, first.packets[0]) != (0, False)
        if not first.timed and codec in RAW_FORMATS:
            return RAW_FORMATS[codec]
        if codec in TS_CODECS and not self._turned and not edited:
            return "mpegts"
        if codec in MP4_CODECS:
            return "mp4"
        if codec in MOV_CODECS:
            return "mov"
        raise CodecError(
            Reason.NO_DECODER,
            f"{codec} video cannot be cut without encoding it again: use lookout analyze, which reads it, "
            "or convert it to H.264",
        )

    def _mux(
        self, packets: list[av.Packet], losses: list[bool], container: str, edit: Edit | None, own: int
    ) -> bytes:
        """Mux the packets, with an edit list if `edit` is given; `own` is added to their times."""
        source = self._video.stream
        times = _times(packets, self._nominal)
        if self._shift is None:
            # Set by the first piece for the whole cut, because a separate shift per piece would break the
            # source's clock.
            hides = edit is not None and edit.hides_begin
            self._shift = -edit.begin if edit and hides else max(0, -min(dts for _, dts in times))
        elif edit is None and min(pts for pts, _ in times) >= -self._shift:
            # After a short first piece that begins at zero, decoding times may be below zero.
            times = _times(packets, self._nominal, -self._shift)
        # In a file with an edit list, only that list says when it begins.
        shift = -min(dts for _, dts in times)
        if edit is None:  # a clock that was set back may also begin below zero
            shift = max(self._shift + own, shift) if own else self._shift
        options = MUXER_OPTIONS.get(container, {}) if edit is None else _WITH_EDIT_LIST
        headers = None if container in _FILES else REPEAT_HEADERS.get(self._video.codec)
        units = length_bytes(self._video.context.extradata, self._video.codec)
        buffer = io.BytesIO()
        losses_out: list[bool] = []  # by packet written
        with av.open(buffer, "w", format=container, options=options) as out:
            target = out.add_stream_from_template(source, opaque=True)
            if edit is not None:
                target.time_base = self._video.time_base
            repeat = BitStreamFilterContext(headers, source, target) if headers else None
            for source_packet, loss, (pts, dts) in zip(packets, losses, times, strict=True):
                packet = with_sets(source_packet, units)
                packet.pts, packet.dts = pts + shift, dts + shift
                if edit is not None:  # an edit list ends with the last picture, which needs a duration
                    packet.duration = packet.duration or self._nominal
                filtered = _filtered(repeat, packet)
                losses_out += [loss] * len(filtered)
                if not filtered and losses_out:
                    losses_out[-1] = True  # the picture after it was dropped
                for ready in filtered:
                    ready.time_base = self._video.time_base
                    ready.stream = target
                    out.mux_one(ready)
        data = buffer.getvalue()
        if edit is not None:
            base = self._video.time_base
            start, length = (edit.begin + self._shift) * base, (edit.end - edit.begin) * base
            data = with_edit(data, start, length, (edit.begin + shift) * base)
        if container == "mpegts":
            data = with_breaks(data, TS_PID, losses_out)
            data = padded(data)
        return data


def padded(data: bytes) -> bytes:
    """Pad MPEG-TS to the length at which it is recognised.

    Null packets have a separate identifier, so readers of the video's counters ignore them.
    """
    return data + TS_NULL_PACKET * max(0, TS_LEAST_PACKETS - len(data) // len(TS_NULL_PACKET))


def _filtered(headers: BitStreamFilterContext | None, packet: av.Packet) -> list[av.Packet]:
    """Add the decoder's headers to a packet; return nothing for a packet too damaged to parse."""
    if headers is None:
        return [packet]
    try:
        return cast(list[av.Packet], headers.filter(packet))
    except av.error.InvalidDataError:
        return []


def _times(packets: list[av.Packet], nominal: int, least: int | None = None) -> list[tuple[int, int]]:
    """Return (pts, dts) of every packet in ticks: the source's if it has them. Decoding times rise, and none
    is below `least`."""
    shown: list[int] = []
    for packet in packets:
        pts = packet.pts if packet.pts is not None else packet.dts
        shown.append(pts if pts is not None else (shown[-1] + nominal if shown else 0))
    if any(packet.dts is None for packet in packets):
        # In order of presentation, early enough that no picture is shown before it is decoded.
        ordered = sorted(shown)
        delay = max(o - s for o, s in zip(ordered, shown, strict=True))
        decoded = [o - delay for o in ordered]
    else:
        decoded = [cast(int, packet.dts) for packet in packets]
    if least is not None:
        decoded[0] = max(decoded[0], least)
    for i in range(1, len(decoded)):
        # Muxers refuse decoding times that do not rise.
        decoded[i] = max(decoded[i], decoded[i - 1] + 1)
    times = decodable(list(zip(shown, decoded, strict=True)))
    if least is None or times[0][1] >= least:
        return times
    return [(max(pts, dts), dts) for pts, dts in zip(shown, decoded, strict=True)]
