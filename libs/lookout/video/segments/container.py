"""Opens untrusted bytes with FFmpeg. Only listed containers and codecs are allowed, and references are never
followed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, NoReturn, Protocol, cast

import av
import av.container
import av.error

from lookout.video.segments.clock import WRAP_TICKS, StreamClock
from lookout.video.segments.display_order import display_order
from lookout.video.segments.sets import SetsInForce, with_sets
from lookout.video.segments.types import CodecError, Limits, Reason

# Demuxers that read only the bytes that they are given. ffconcat, SDP, HLS, DASH, image sequences and filter
# graphs follow references, so they are not listed. Formats that cameras send:
FORMATS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "mpegts", "mpeg", "avi", "flv"),
    *("h264", "hevc", "m4v", "mpegvideo", "h263", "mjpeg", "ivf", "obu", "av1"),
)
CODECS = (
    *("h264", "hevc", "mpeg4", "mpeg2video", "mpeg1video", "h263", "flv", "msmpeg4", "msmpeg4v2"),
    *("libdav1d", "av1", "vp8", "vp9", "vvc", "mjpeg"),
)
#: The first pictures of a camera with B-frames have no time stamp. FFmpeg 9 then fails to write MPEG-TS,
#: Matroska and NUT, but can write fragmented MP4.
_NOTHING_CAME = (
    "nothing arrived through the pipe: see the messages of the program that writes to it. If ffmpeg cannot "
    "copy a camera with B-frames into MPEG-TS, let it write -f mp4 -movflags frag_keyframe+empty_moov"
)
# With further formats that only recordings have.
RECORDING_FORMATS = (*FORMATS, "asf", "ogg", "mxf", "dv", "nut", "yuv4mpegpipe", "gif", "rm", "dhav")
RECORDING_CODECS = (
    *CODECS,
    *("wmv1", "wmv2", "wmv3", "vc1", "msmpeg4v1", "theora", "prores", "dnxhd", "dvvideo", "ffv1", "ffvhuff"),
    *("huffyuv", "utvideo", "rawvideo", "v210", "v410", "cfhd", "jpeg2000", "png", "gif", "qtrle", "cinepak"),
    *("svq1", "svq3", "h261", "vp6", "vp6f", "vp7", "rv30", "rv40", "snow", "magicyuv", "mpegvideo"),
)
VECTOR_CODECS = frozenset(
    {"h264", "mpeg4", "mpeg2video", "mpeg1video", "h263", "flv", "msmpeg4", "msmpeg4v2"}
)
EXPORT_MVS = 1 << 28  # AV_CODEC_FLAG2_EXPORT_MVS
DEFAULT_FPS = Fraction(25)
REORDER = (
    32  # maximum number of packets by which decoding and display order may differ; beyond, the clock jumped
)
EARLY_PACKETS = 512  # maximum number of packets without a time at a stream's beginning, before its time zero
_PLAYLIST = 1024  # bytes within which a playlist is recognised
_BOXES = 64  # maximum number of boxes of an MP4 file that are searched for its index
WRAPPING = ("mpegts", "mpeg")  # their stamps have 33 bits
FLV_TURN = 1 << 31  # milliseconds after which the times of an FLV file wrap
FLV_EARLY = 60_000  # maximum number of milliseconds by which a time may lie below zero


class ByteSource(Protocol):
    """A source that FFmpeg can read: a binary file, an mmap, a BytesIO."""

    def read(self, size: int = ..., /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> Any: ...
    def tell(self) -> int: ...


def _refuse(url: str, _flags: int, _options: dict[str, str]) -> NoReturn:
    raise PermissionError(f"the container refers to {url[:200]!r}; references are not followed")


def _is_cover(stream: av.stream.Stream) -> bool:
    """Whether a stream is a cover picture, that is, a video stream of one frame."""
    return stream.type == "video" and bool(int(stream.disposition) & 0x400)  # AV_DISPOSITION_ATTACHED_PIC


class Video:
    """The first video stream of a container, one packet and one frame at a time.

    `source`: bytes or a seekable binary file. `stream`: index among the video streams. `threads`: slice
    threads, because frame threads give wrong motion vectors and lose frames after an error. `probe`: let
    FFmpeg decode H.264 pictures to identify the stream (60 ms at 1080p), which the index of an MP4 file makes
    unnecessary. `recording`: a whole recording instead of a segment, which allows containers and codecs that
    no camera sends. Errors: `CodecError` with EMPTY, UNREADABLE, NO_VIDEO, NO_DECODER or DIMENSIONS.
    """

    def __init__(
        self,
        source: bytes | ByteSource,
        *,
        vectors: bool = True,
        threads: int = 1,
        limits: Limits | None = None,
        stream: int = 0,
        probe: bool = True,
        recording: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._formats = RECORDING_FORMATS if recording else FORMATS
        self._codecs = RECORDING_CODECS if recording else CODECS
        self._whole = recording
        self._file = io.BytesIO(source) if isinstance(source, bytes) else source
        self._container = self._open(probe)
        try:
            self.stream = self._choose(stream)
            self.context = self.stream.codec_context
            self._prepare(vectors, threads)
        except BaseException:
            self.close()
            raise
        self.clock: StreamClock | None = None  # for the packets since the beginning or the last seek
        self.sets = SetsInForce(self.codec, self.context.extradata)
        self._flow: Iterator[av.Packet] | None = None
        self.demuxed = 0  # packets given so far
        self.refused = 0  # packets the demuxer or decoder would not take
        self.damage = ""  # the first error

    def _open(self, probe: bool) -> av.container.InputContainer:
        size = source_size(self._file)
        if size == 0:
            raise CodecError(Reason.EMPTY, "0 bytes")
        options = {
            "format_whitelist": ",".join(self._formats),
            "codec_whitelist": ",".join(self._codecs),
            # No such protocol exists, so FFmpeg opens none of the addresses that a container may name.
            "protocol_whitelist": "none",
            # Continue an MPEG-TS stream whose programme table changes the video's identifier midway.
            "merge_pmt_versions": "1",
            **({} if probe else {"skip_frame": "all"}),
        }
        try:
            return cast(
                av.container.InputContainer,
                av.open(self._file, mode="r", options=options, metadata_errors="replace", io_open=_refuse),
            )
        except (av.error.FFmpegError, ValueError, PermissionError) as error:
            why = "this is not a video in a container that Lookout can read"
            if size is None and _is_empty(self._file):
                raise CodecError(Reason.EMPTY, _NOTHING_CAME) from None
            if size is not None:
                why = _named(self._file, size) or why
            raise CodecError(Reason.UNREADABLE, f"{why} ({_text(error)})") from None

    def _choose(self, index: int) -> av.video.stream.VideoStream:
        streams = [stream for stream in self._container.streams.video if not _is_cover(stream)]
        if index >= len(streams):
            kinds = {"a cover picture" if _is_cover(s) else s.type for s in self._container.streams}
            names = ", ".join(sorted(kinds)) or "nothing"
            raise CodecError(
                Reason.NO_VIDEO, f"the {self.container} container has {names}, but no video stream"
            )
        stream = streams[index]
        if stream.codec_context is None or stream.codec_context.name not in self._codecs:
            name = getattr(stream.codec_context, "name", "unknown")
            raise CodecError(Reason.NO_DECODER, f"no decoder for the video codec {name!r}")
        return stream

    def _prepare(self, vectors: bool, threads: int) -> None:
        self.context.thread_count = threads
        self.context.thread_type = "SLICE" if threads > 1 else "NONE"
        self.has_vectors = vectors and self.context.name in VECTOR_CODECS
        if self.has_vectors:
            self.context.flags2 |= EXPORT_MVS
        self.check_size(self.context.width, self.context.height)

    def check_size(self, width: int, height: int) -> None:
        """Reject pictures that exceed the limits."""
        if max(width, height) > self.limits.side or width * height > self.limits.pixels:
            raise CodecError(
                Reason.DIMENSIONS,
                f"pictures of {width}x{height} ({width * height / 1e6:.1f} megapixels) exceed the limit of "
                f"{self.limits.side} pixels a side and {self.limits.pixels / 1e6:.1f} megapixels "
                "(in a fleet: raise LOOKOUT_SEGMENT_PIXELS of decode)",
            )

    @property
    def container(self) -> str:
        """Short name of the container, e.g. mp4, mpegts, matroska, h264 (Annex B)."""
        name = self._container.format.name
        return str({"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "matroska"}.get(name, name))

    @property
    def codec(self) -> str:
        """Name of the codec, independent of the decoder's name."""
        name: str = self.context.name
        return "av1" if name == "libdav1d" else name

    @property
    def tags(self) -> dict[str, str]:
        """Metadata of the stream and of the container; the container's wins."""
        return {**self.stream.metadata, **self._container.metadata}

    @property
    def listed(self) -> int:
        """Number of packets that the container claims; 0 if it claims none. For an MP4 file: those within its
        edit list, else those in its tables. For an AVI file: the non-empty ones, because dropped pictures are
        empty."""
        if self.container in ("mp4", "avi") and (entries := len(self.stream.index_entries)):
            return entries
        return max(0, int(self.stream.frames or 0))

    @property
    def stamps_decoding(self) -> bool:
        """Whether pictures are reordered in a container that may have decoding times only (AVI, and
        Matroska's mode for such streams)."""
        return self.container in ("avi", "matroska") and bool(self.context.has_b_frames)

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick of the stream's time stamps."""
        return self.stream.time_base or Fraction(1, 90_000)

    @property
    def steady(self) -> bool:
        """Whether the packets so far have the container's own stamps and parameter sets. Decoding may then
        begin anywhere after a seek."""
        return not self.sets.changed and (self.clock is None or self.clock.steady)

    @property
    def fps(self) -> Fraction:
        """Nominal frame rate: the measured rate if stamps had to be filled in; otherwise the rate that the
        stream claims, or 25 if that is implausible.
        """
        measured = self.clock.fps if self.clock is not None and self.clock.filled else None
        for rate in (measured, self.stream.guessed_rate, self.stream.average_rate):
            # A stream without a rate claims a value such as 90000, which is the ticks of its clock.
            if rate and Fraction(1, 120) <= rate <= 1000:
                return Fraction(rate)
        return DEFAULT_FPS

    def hides(self, packet: av.Packet) -> bool:
        """Whether a packet is decoded but not shown: an edit list hides its picture, or it lies before the
        zero of a Matroska file."""
        return _is_hidden(packet, self.container)

    def packets(self) -> Iterator[av.Packet]:
        """Return the stream's packets in decoding order, with their times (`StreamClock`) and the parameter
        sets in force (`SetsInForce`). Damage ends the iteration and is counted. Another call continues the
        iteration."""
        if self._flow is None:
            packets = self._packets()
            if self.container == "flv":
                packets = _with_signed_times(packets)
            elif self.container == "matroska":
                packets = _with_early_times(packets, self)
            self.clock = StreamClock(
                self.time_base,
                self.fps,
                wrap=WRAP_TICKS if self.container in WRAPPING else 0,
                reorders=bool(self.context.has_b_frames),
                hides=partial(_is_hidden, container=self.container),  # a bound method would form a cycle
                whole=self._whole,
                order=partial(display_order, self.stream),
            )
            self._flow = self.clock.stamped(map(self.sets.mark, packets))
        return self._flow

    def _packets(self) -> Iterator[av.Packet]:
        # Programme tables that change midway can add streams that PyAV does not know: an IndexError.
        damage = (av.error.FFmpegError, PermissionError, ValueError, IndexError)
        try:
            packets = self._container.demux(self.stream)
        except damage as error:
            self._note(error)
            return
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except damage as error:
                self._note(error)
                return
            # PyAV ends a stream with an empty packet, which drains the decoder; `decode(None)` does that
            # here.
            if packet.size:
                self.demuxed += 1
                self._check_clear(packet)
                yield packet

    def _check_clear(self, packet: av.Packet) -> None:
        """Reject an encrypted packet, which would decode to noise.

        Raises:
            CodecError: With NO_DECODER.
        """
        if packet.has_sidedata("encryption_info") or packet.has_sidedata("encryption_init_info"):
            raise CodecError(
                Reason.NO_DECODER,
                f"its {self.codec} video is encrypted (Common Encryption), and Lookout has no keys for it: "
                "decrypt it first",
            )

    def decode(self, packet: av.Packet | None) -> list[av.VideoFrame]:
        """Return the frames that one packet completes, in presentation order; None drains the decoder. Damage
        is counted, not raised."""
        try:
            frames = self.context.decode(None if packet is None else with_sets(packet))
        except av.error.MemoryError as error:
            raise CodecError(Reason.MEMORY, f"the decoder ran out of memory ({_text(error)})") from None
        except (av.error.FFmpegError, ValueError) as error:
            self._note(error)
            return []
        for frame in frames:
            self.check_size(frame.width, frame.height)
        return [frame for frame in frames if not _precedes_zero(frame.pts, self.container)]

    def frames(self) -> Iterator[av.VideoFrame]:
        """Yield every frame in presentation order."""
        for packet in self.packets():
            yield from self.decode(packet)
        yield from self.decode(None)

    def seek(self, pts: int) -> None:
        """Seek to the last keyframe with a time stamp at or before `pts` (ticks)."""
        self._container.seek(pts, stream=self.stream, backward=True, any_frame=False)
        self._flow = None

    def _note(self, error: Exception) -> None:
        self.refused += 1
        new_stream = "its programme table lists a stream that did not exist at the beginning"
        self.damage = self.damage or (new_stream if isinstance(error, IndexError) else _text(error))

    def close(self) -> None:
        """Release FFmpeg's objects; the source stays open."""
        self._flow = None  # it refers to this object, whose decoder holds a picture
        with suppress(av.error.FFmpegError):
            self._container.close()

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_hidden(packet: av.Packet, container: str) -> bool:
    return packet.is_discard or _precedes_zero(packet.pts, container)


def _precedes_zero(pts: int | None, container: str) -> bool:
    # FFmpeg gives such a packet of Matroska no time; `_with_early_times` gives it one below zero.
    return pts is not None and pts < 0 and container == "matroska"


def _with_early_times(packets: Iterator[av.Packet], video: Video) -> Iterator[av.Packet]:
    """Yield the packets of a Matroska stream; packets without a time at its beginning get one below zero.

    The time of a block can be negative, but FFmpeg drops negative times.
    """
    early: list[av.Packet] = []
    for packet in packets:
        early.append(packet)
        if packet.pts is not None or len(early) == EARLY_PACKETS:
            break
    if not early or early[-1].pts is None:  # no packet has a time
        yield from early
        yield from packets
        return
    step = max(1, round(1 / (video.fps * video.time_base)))
    # Even pictures stored after one with a later time may have a time below zero.
    last = len(early) + REORDER
    for place, packet in enumerate(chain(early, packets)):
        if packet.pts is None and place < last:
            packet.pts = packet.dts = (place - last) * step
        yield packet


def _with_signed_times(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
    """Yield the packets of an FLV file with signed times. FFmpeg writes decoding times below zero, with which
    streams with B-frames begin, in 31 bits; read as unsigned, such times are 25 days off."""
    for packet in packets:
        if packet.dts is not None and packet.pts is not None:
            turns = (packet.dts + FLV_EARLY) // FLV_TURN
            packet.dts, packet.pts = packet.dts - turns * FLV_TURN, packet.pts - turns * FLV_TURN
        yield packet


def missing_packets(listed: int, counted: int) -> str:
    """Return a message if a container lists more frames than it has; "" otherwise.

    Args:
        listed: Number of packets that it claims; 0 if it claims none.
        counted: Number of packets that were found.
    """
    if listed <= counted + 2:  # some writers also count an unfinished frame
        return ""
    return f"the container lists {listed} frames, but has only {counted}"


def source_size(source: ByteSource) -> int | None:
    """Return the size of a source in bytes (None for a pipe), and leave it at its beginning.

    Raises:
        CodecError: With UNREADABLE: the source's end cannot be found.
    """
    seekable = getattr(source, "seekable", None)
    if seekable is not None and not seekable():
        return None
    try:
        source.seek(0, io.SEEK_END)
        size = source.tell()
        source.seek(0)
    except OSError as error:  # such as /proc/self/mem
        raise CodecError(Reason.UNREADABLE, f"its size cannot be determined ({_text(error)})") from None
    return size


def _is_empty(pipe: ByteSource) -> bool:
    """Whether nothing was read from a pipe; False if it does not report its position."""
    try:
        return int(pipe.tell()) == 0
    except OSError:
        return False


def _named(source: ByteSource, length: int) -> str:
    """Return a message for a playlist, or for a part of a video; "" for other files.

    Args:
        source: The file.
        length: Its size in bytes.
    """
    source.seek(0)
    head = source.read(_PLAYLIST).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"#EXTM3U"):
        return "this is a playlist (.m3u8), which only lists videos: give one of the files that it lists"
    if b"<MPD" in head:
        return "this is a manifest (.mpd), which only lists videos: give one of the files that it lists"
    kinds = _box_kinds(source, length)
    if b"moov" in kinds:
        return ""
    if kinds[:1] in ([b"styp"], [b"sidx"], [b"moof"]) and b"moof" in kinds:
        return (
            "this is a fragment (.m4s) without its initialisation segment: put that segment in front "
            "(cat init.mp4 part-*.m4s > whole.mp4)"
        )
    if kinds[:1] == [b"ftyp"] and b"mdat" in kinds:
        return "this MP4 file has no index (moov): the recording was not finished"
    return ""


def _box_kinds(source: ByteSource, length: int) -> list[bytes]:
    """Return the kinds of the boxes at the top of an MP4 file of `length` bytes, up to the first invalid
    one."""
    at = 0
    kinds: list[bytes] = []
    while len(kinds) < _BOXES and at < length:  # a damaged box may state any size
        source.seek(at)
        head = source.read(16)
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:], "big")
        if len(head) < 8 or (size < 8 and size != 0):
            break
        kinds.append(kind)
        if size == 0:  # to the end of the file
            break
        at += size
    return kinds


def ticks_to_us(ticks: int, time_base: Fraction) -> int:
    """Convert a time stamp to microseconds, rounded down so that equal stamps stay equal."""
    return ticks * time_base.numerator * 1_000_000 // time_base.denominator


def _text(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
