"""Joins a camera's segments into a clip, a fragmented MP4 file that is cut at keyframes and re-encoded only
if a mask is requested.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import av
import av.error

from lookout.video.segments.container import Video, ticks_to_us
from lookout.video.segments.masked_clip import encoded_again
from lookout.video.segments.nal import START, begins_clean, nal_units
from lookout.video.segments.picture import turn_of
from lookout.video.segments.sets import Sets, SetsInForce, with_sets
from lookout.video.segments.timeline import usual_step
from lookout.video.segments.types import (
    CLIP_CODECS,
    ClipSegment,
    ClipSpan,
    CodecError,
    JoinedClip,
    JoinRequest,
    Limits,
    Reason,
)

KEPT_HOLE_US: Final = 5_000_000
"""Longest hole that keeps its length in the clip; the picture before it stays on the screen."""
CLOSED_HOLE_US: Final = 1_000_000
"""Length that longer holes have in the clip."""
_HOLE_US: Final = 1_000_000  # shorter pauses are not holes
_HIDDEN_US: Final = 1  # duration of a picture that an edit list hides: too short for any screen
_TICKS: Final = 1_000_000  # of a second
_NAL_CODECS: Final = ("h264", "hevc")
# For a whole clip: an edit list shows the first picture at time zero, although decoding begins earlier.
_WHOLE: Final = {"movflags": "frag_keyframe+delay_moov+default_base_moof+global_sidx", "use_editlist": "1"}
_CONTINUED: Final = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+frag_discont+skip_trailer",
    "use_editlist": "0",
    "write_btrt": "0",  # a bit rate would make the head differ between segments
}


@dataclass(slots=True, eq=False)
class _Stream:
    """A segment that was read. template: the open container, from which the clip's track is made."""

    segment: ClipSegment
    place: int  # number of its epoch within the clip
    template: Video
    configuration: bytes
    changed: bool
    nominal_us: int
    begins_us: int = 0  # stream time
    ends_us: int = 0

    @property
    def kind(self) -> tuple[str, bytes]:
        """The properties that all pictures of a track must share. H.264 and HEVC tracks may change their
        configuration."""
        codec = self.template.codec
        return codec, b"" if codec in _NAL_CODECS else self.configuration


@dataclass(slots=True)
class _Picture:
    """A packet. at_us: stream time at which it is shown; clip_us: clip time at which it is shown."""

    data: bytes
    stream: _Stream
    at_us: int
    key: bool
    hidden: bool
    clip_us: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: presentation order."""
        return self.stream.place, self.at_us

    @property
    def wall_us(self) -> int:
        """Unix time at which the picture was filmed, in microseconds."""
        return self.at_us + self.stream.segment.wall_offset_us


def join(request: JoinRequest, limits: Limits | None = None) -> JoinedClip:
    """Make one file of a camera's time range that plays on its own.

    It begins with the last keyframe at or before the range, or else with the first one in the range. A hole
    of at most `KEPT_HOLE_US` keeps its length; a longer one is shortened to `CLOSED_HOLE_US`, even between
    epochs. Segments that repeat earlier footage are skipped. If the camera changes its codec, only the codec
    that has most of the segments' time is shown, and the rest is a hole. With a mask, the clip is re-encoded.

    Args:
        request: Segments and range.
        limits: Limits of a segment.

    Raises:
        CodecError: No clip can be made: REQUEST (nothing in the range), NO_DECODER (a codec that browsers do
            not play in MP4), NO_KEYFRAME, BYTES or UNREADABLE.
    """
    limits = limits or Limits()
    with ExitStack() as stack:
        segments: list[list[_Picture]] = []
        refusal: CodecError | None = None
        epochs: list[int] = []
        for segment in request.segments:
            if not epochs or epochs[-1] != segment.epoch:
                epochs.append(segment.epoch)
            try:
                segments.append(_read(segment, len(epochs), limits, stack))
            except CodecError as error:  # a damaged segment becomes a hole
                refusal = refusal or error
        pictures = _in_range(_connected(_of_one_kind(segments)), request.from_us, request.to_us)
        if not pictures:
            raise refusal or CodecError(Reason.REQUEST, "no picture was filmed in this time")
        size = sum(len(picture.data) for picture in pictures)
        if size > request.max_bytes:
            raise CodecError(
                Reason.BYTES, f"the clip would have {size} bytes; the limit is {request.max_bytes}"
            )
        spans = _place(pictures, request.at_us)
        clip = _muxed(pictures, spans, request)
        return clip if request.mask is None else _masked(clip, pictures, request)


def _read(segment: ClipSegment, place: int, limits: Limits, stack: ExitStack) -> list[_Picture]:
    """Return the pictures of a segment in decoding order.

    Raises:
        CodecError: The segment cannot be read, or its codec cannot be shown.
    """
    video = stack.enter_context(Video(segment.data, vectors=False, limits=limits, probe=False))
    if video.codec not in CLIP_CODECS:
        raise CodecError(
            Reason.NO_DECODER, f"no clip of {video.codec} video can be made: browsers do not play it"
        )
    if video.codec in _NAL_CODECS:
        # Every keyframe carries its parameter sets, because the previous segment may have had other ones.
        video.sets = SetsInForce(video.codec, video.context.extradata, always=True)
    stream = _Stream(segment, place, video, video.context.extradata or b"", False, round(1e6 / video.fps))
    pictures: list[_Picture] = []
    units: tuple[bytes, ...] = ()
    for index, packet in enumerate(video.packets()):
        if index > limits.frames:
            raise CodecError(Reason.LENGTH, f"a segment has more than {limits.frames} pictures")
        data = bytes(packet)
        key = packet.is_keyframe and begins_clean(data, video.codec, video.sets.length)
        if video.codec in _NAL_CODECS:
            if isinstance(packet.opaque, Sets):
                units = units or packet.opaque.units
            data = _annex_b(packet, video.sets.length)
        at_us = segment.origin_us + _time_us(packet, index, stream)
        pictures.append(_Picture(data, stream, at_us, key, video.hides(packet)))
    if not pictures:
        raise CodecError(Reason.NO_FRAMES, "a segment has no picture")
    if units:
        stream.configuration = b"".join(b"\0" + START + unit for unit in units)
    stream.changed = video.sets.changed
    times = sorted(picture.at_us for picture in pictures)
    stream.nominal_us = max(1, usual_step(times, stream.nominal_us))
    stream.begins_us, stream.ends_us = times[0], times[-1] + stream.nominal_us
    return pictures


def _time_us(packet: av.Packet, index: int, stream: _Stream) -> int:
    stamp = packet.pts if packet.pts is not None else packet.dts
    if stamp is not None:
        return ticks_to_us(stamp, stream.template.time_base)
    if stream.template.context.has_b_frames:
        raise CodecError(
            Reason.REQUEST,
            "a segment without time stamps does not say in which order its pictures are shown",
        )
    return index * stream.nominal_us


def _annex_b(packet: av.Packet, length: int) -> bytes:
    """Return an access unit with start codes; a keyframe includes its parameter sets."""
    if isinstance(packet.opaque, Sets):
        return bytes(with_sets(packet, 0))
    if not length:
        return bytes(packet)
    return b"".join(b"\0" + START + unit for unit in nal_units(bytes(packet), length))


def _of_one_kind(segments: Sequence[list[_Picture]]) -> list[list[_Picture]]:
    """Return the segments that one track can contain, which are those of the kind that covers most of the
    time.
    """
    lengths: Counter[tuple[str, bytes]] = Counter()
    for pictures in segments:
        stream = pictures[0].stream
        lengths[stream.kind] += stream.ends_us - stream.begins_us
    longest = max(lengths, key=lambda kind: lengths[kind], default=None)
    return [pictures for pictures in segments if pictures[0].stream.kind == longest]


def _connected(segments: Iterable[list[_Picture]]) -> list[_Picture]:
    """Concatenate the pictures of segments that can be decoded one after the other, and skip repeated
    segments."""
    connected: list[_Picture] = []
    before: _Stream | None = None
    for pictures in segments:
        stream = pictures[0].stream
        continues = before is not None and before.place == stream.place
        if before is not None and continues and abs(stream.begins_us - before.ends_us) <= stream.nominal_us:
            connected += pictures
            before = stream
            continue
        own = _from_keyframe(pictures)
        if not own or (before is not None and continues and own[0].at_us < before.ends_us):
            continue
        connected += own
        before = stream
    return connected


def _from_keyframe(pictures: Sequence[_Picture], first: int | None = None) -> list[_Picture]:
    """Return the pictures from a keyframe on, but none that are shown before it: these refer to earlier
    pictures.

    Args:
        pictures: In decoding order.
        first: Index of the keyframe; None: the first.
    """
    if first is None:
        first = next((place for place, picture in enumerate(pictures) if picture.key), len(pictures))
    return [picture for picture in pictures[first:] if picture.order >= pictures[first].order]


def _in_range(pictures: list[_Picture], from_us: int, to_us: int) -> list[_Picture]:
    """Return the pictures of a range, and those needed to decode them.

    Raises:
        CodecError: With NO_KEYFRAME.
    """
    inside = [place for place, picture in enumerate(pictures) if from_us <= picture.wall_us < to_us]
    if not inside:
        return []
    keys = [place for place, picture in enumerate(pictures) if picture.key]
    earlier = [place for place in keys if pictures[place].wall_us <= from_us]
    first, last = max(earlier, default=keys[0] if keys else len(pictures)), inside[-1]
    if first > last:
        raise CodecError(Reason.NO_KEYFRAME, "there is no keyframe before or within this range of time")
    while True:
        # Include every picture that is shown before the newest picture.
        newest = max(picture.order for picture in pictures[first : last + 1])
        further = max(place for place in range(first, len(pictures)) if pictures[place].order <= newest)
        if further == last:
            break
        last = further
    range_pictures = _from_keyframe(pictures[: last + 1], first)
    while range_pictures and range_pictures[-1].hidden:
        range_pictures.pop()
    return range_pictures


def _place(pictures: Sequence[_Picture], at_us: int) -> list[ClipSpan]:
    """Set every picture's time in the clip; return the clip's spans."""
    spans: list[ClipSpan] = []
    before: _Picture | None = None
    for picture in sorted((p for p in pictures if not p.hidden), key=lambda picture: picture.order):
        begins = before is None
        if before is None:
            picture.clip_us = at_us
        else:
            # Within an epoch, stream time is used, because the epoch's clock offset may be corrected midway.
            together = before.stream.place == picture.stream.place
            step_us = picture.at_us - before.at_us if together else picture.wall_us - before.wall_us
            usual_us = before.stream.nominal_us
            hole_us = step_us - usual_us
            begins = hole_us > max(_HOLE_US, 2 * usual_us) or (not together and hole_us < -usual_us)
            if hole_us > KEPT_HOLE_US:
                step_us = usual_us + CLOSED_HOLE_US
            # If a clock was set, an epoch may begin before the previous one ends.
            picture.clip_us = before.clip_us + (step_us if together else max(step_us, usual_us))
        if begins:
            spans.append(ClipSpan(picture.clip_us, picture.wall_us, 0))
        end_us = picture.wall_us + picture.stream.nominal_us
        spans[-1] = replace(spans[-1], end_us=max(spans[-1].end_us, end_us))
        before = picture
    following_us: int | None = None
    for picture in sorted(pictures, key=lambda picture: picture.order, reverse=True):
        if not picture.hidden:
            following_us = picture.clip_us
        else:
            following_us = (at_us if following_us is None else following_us) - _HIDDEN_US
            picture.clip_us = following_us
    return spans


def _muxed(pictures: Sequence[_Picture], spans: Sequence[ClipSpan], request: JoinRequest) -> JoinedClip:
    """Mux the pictures into a file.

    Raises:
        CodecError: With UNREADABLE.
    """
    first = pictures[0].stream
    codec = first.template.codec
    stamps = _stamps([picture.clip_us for picture in pictures])
    streams = {id(picture.stream): picture.stream for picture in pictures}.values()
    changing = any(stream.changed or stream.configuration != first.configuration for stream in streams)
    buffer = io.BytesIO()
    options = _options(request)
    try:
        # To put the index in front, the muxer reads its own output again.
        reread = lambda *_: io.BytesIO(buffer.getvalue())  # noqa: E731
        with av.open(buffer, "w", format="mp4", options=options, io_open=reread) as out:
            target = out.add_stream_from_template(first.template.stream, opaque=True)
            target.time_base = Fraction(1, _TICKS)
            target.codec_context.extradata = first.configuration
            if codec == "hevc":
                # Apple's players accept only hvc1, but hvc1 allows no parameter sets among the packets.
                target.codec_context.codec_tag = "hev1" if changing else "hvc1"
            elif codec == "h264":
                target.codec_context.codec_tag = "avc3" if changing else "avc1"
            for picture, (pts, dts) in zip(pictures, stamps, strict=True):
                packet = av.Packet(picture.data)
                packet.pts, packet.dts, packet.time_base = pts, dts, Fraction(1, _TICKS)
                packet.duration = picture.stream.nominal_us
                packet.is_keyframe = picture.key
                packet.stream = target
                out.mux_one(packet)
    except (av.error.FFmpegError, ValueError) as error:
        raise CodecError(
            Reason.UNREADABLE, f"its {codec} packets could not be put into mp4 ({error})"
        ) from None
    data = buffer.getvalue()
    shown = [picture for picture in pictures if not picture.hidden]
    newest = max(shown, key=lambda picture: picture.clip_us)
    context = first.template.context
    return JoinedClip(
        data,
        codec,
        codecs_of(data, codec),
        context.width,
        context.height,
        len(shown),
        tuple(spans),
        newest.clip_us + newest.stream.nominal_us,
    )


def _masked(clip: JoinedClip, pictures: Sequence[_Picture], request: JoinRequest) -> JoinedClip:
    """Return the clip, re-encoded with hidden areas in grey.

    Raises:
        CodecError: The clip cannot be decoded or encoded, or is too large.
    """
    assert request.mask is not None
    keyframe = av.Packet(pictures[0].data)
    turn = turn_of(pictures[0].stream.template, keyframe)
    shown_us = {picture.clip_us for picture in pictures if not picture.hidden}
    masked = encoded_again(clip.data, request.mask, turn, shown_us, _options(request))
    if len(masked.data) > request.max_bytes:
        detail = f"the masked clip would have {len(masked.data)} bytes; the limit is {request.max_bytes}"
        raise CodecError(Reason.BYTES, detail)
    return replace(
        clip,
        data=masked.data,
        codec="h264",
        codecs=codecs_of(masked.data, "h264"),
        width=masked.width,
        height=masked.height,
        frames=masked.frames,
        masked=True,
    )


def _options(request: JoinRequest) -> dict[str, str]:
    """Return the options of the MP4 muxer."""
    return {
        **(_CONTINUED if request.fragment else _WHOLE),
        "avoid_negative_ts": "disabled",
        "video_track_timescale": str(_TICKS),
        "fragment_index": str(max(1, request.fragment)),
    }


def _stamps(shown_us: Sequence[int]) -> list[tuple[int, int]]:
    """Return (presentation, decoding time) of pictures in decoding order.

    Decoding times rise, and no picture is shown before it is decoded. They may begin below zero, because
    players start at the first picture.
    """
    ordered = sorted(shown_us)
    delay = max(late - early for late, early in zip(ordered, shown_us, strict=True))
    decoded: list[int] = []
    for time_us in ordered:
        decoded.append(max(time_us - delay, decoded[-1] + 1) if decoded else time_us - delay)
    return [(max(pts, dts), dts) for pts, dts in zip(shown_us, decoded, strict=True)]


def codecs_of(data: bytes, codec: str) -> str:
    """Return the `codecs` parameter of an MP4 file's media type (RFC 6381), or the codec's name if it is
    unknown.

    Args:
        data: The file.
        codec: h264, hevc, av1 or vp9.
    """
    box = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C", "vp9": b"vpcC"}[codec]
    at = data.find(box)
    body = data[at + 4 : at + 24] if at > 0 else b""
    if len(body) < 20:
        return codec
    tag = next((tag for tag in (b"avc3", b"hev1", b"hvc1") if tag in data[:at]), b"avc1").decode()
    if codec == "h264":
        return f"{tag}.{body[1:4].hex()}"
    if codec == "hevc":  # ISO/IEC 14496-15, annex E.3
        space, tier, profile = body[1] >> 6, body[1] >> 5 & 1, body[1] & 31
        compatible = int(f"{int.from_bytes(body[2:6], 'big'):032b}"[::-1], 2)
        constraints = "".join(f".{byte:X}" for byte in body[6:12].rstrip(b"\0"))
        names = f"{'ABC'[space - 1] if space else ''}{profile}.{compatible:X}.{'LH'[tier]}{body[12]}"
        return f"{tag}.{names}{constraints}"
    if codec == "av1":  # AV1 codec ISO media file format binding, 5
        depth = 8 + 2 * (body[2] >> 6 & 1) + 2 * (body[2] >> 6 & body[2] >> 5 & 1)
        return f"av01.{body[1] >> 5}.{body[1] & 31:02d}{'MH'[body[2] >> 7]}.{depth:02d}"
    return f"vp09.{body[4]:02d}.{body[5]:02d}.{body[6] >> 4:02d}"
