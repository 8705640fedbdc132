"""Footage of masked cameras: decoded, greyed and encoded again; no packet leaves as it was filmed."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Final, cast

import av
import av.error
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext

from lookout.video.motion.geometry import Fit, Geometry
from lookout.video.motion.hiding import PictureMask
from lookout.video.segments.container import Video
from lookout.video.segments.cutting import MUXER_OPTIONS, padded
from lookout.video.segments.picture import Painter, orientation
from lookout.video.segments.types import CodecError, Limits, Reason

#: pixels of a clip's longer side: people look at it, and a sandboxed process encodes it on one core
LONGEST_SIDE: Final = 1280
_KEY_EVERY: Final = 50  # pictures
_TS_TICKS: Final = 90_000  # of a second, in MPEG-TS
_OPTIONS: Final = {"preset": "veryfast", "tune": "zerolatency", "crf": "23", "threads": "1"}


@dataclass(frozen=True, slots=True)
class MaskedClip:
    """data: fragmented MP4; width, height: of its pictures, which stand upright; frames: how many."""

    data: bytes
    width: int
    height: int
    frames: int


def encoded_again(
    data: bytes,
    mask: PictureMask,
    turn: tuple[int, bool],
    shown_us: Collection[int],
    options: Mapping[str, str],
) -> MaskedClip:
    """A clip with a mask, in H.264.

    Args:
        data: MP4 with times in microseconds.
        mask: What is hidden.
        turn: (degrees clockwise, mirrored first) that bring its pictures upright.
        shown_us: Times of the pictures to take; others are only referred to.
        options: Of the MP4 muxer.

    Raises:
        CodecError: With NO_FRAMES, NO_DECODER or UNREADABLE.
    """
    buffer = io.BytesIO()
    reread = lambda *_: io.BytesIO(buffer.getvalue())  # noqa: E731
    with (
        _telling_failures("a masked clip"),
        av.open(buffer, "w", format="mp4", options=dict(options), io_open=reread) as out,
    ):
        encoder = _Encoder(out, mask, Fraction(1, 1_000_000), LONGEST_SIDE)
        for frame in _frames(data, shown_us):
            encoder.add(frame, turn)
        encoder.finish()
    return MaskedClip(buffer.getvalue(), *encoder.size, encoder.frames)


def masked_segment(data: bytes, mask: PictureMask, max_bytes: int, limits: Limits | None = None) -> bytes:
    """A segment with the same times and a mask, in H.264: what a masking publisher sends in its place.

    Its pictures stand upright and have the size that they were filmed in. The encoder places the keyframes,
    and sees only what is shown.

    Args:
        data: The segment's bytes, in any container.
        mask: What is hidden.
        max_bytes: Of the result.
        limits: What to refuse of the segment.

    Returns:
        MPEG-TS, or an elementary stream if the segment has no time stamps.

    Raises:
        CodecError: With NO_FRAMES, NO_DECODER, BYTES, LENGTH, or whatever is wrong with the segment.
    """
    buffer, limits = io.BytesIO(), limits or Limits()
    with Video(data, vectors=False, limits=limits) as video, _telling_failures("a masked segment"):
        frames = video.frames()
        first = next(frames, None)
        if first is None:
            raise CodecError(Reason.NO_FRAMES, "no picture of it can be decoded")
        timed = first.pts is not None
        time_base = Fraction(1, _TS_TICKS) if timed else 1 / video.fps
        container, options = ("mpegts", MUXER_OPTIONS["mpegts"]) if timed else ("h264", {})
        with av.open(buffer, "w", format=container, options=options) as out:
            encoder = _Encoder(out, mask, time_base, rate=video.fps)
            last = None
            for frame in chain((first,), frames):
                at = encoder.frames if frame.pts is None else round(frame.pts * video.time_base / time_base)
                if encoder.frames > limits.frames:
                    raise CodecError(Reason.LENGTH, f"a segment has more than {limits.frames} pictures")
                if last is None or at > last:
                    frame.pts = last = at
                    encoder.add(frame, orientation(frame))
            encoder.finish()
    masked = padded(buffer.getvalue()) if timed else buffer.getvalue()
    if len(masked) > max_bytes:
        detail = f"a masked segment would have {len(masked)} bytes; the limit is {max_bytes}"
        raise CodecError(Reason.BYTES, detail)
    return masked


@dataclass(slots=True)
class _Encoder:
    """Greys pictures and encodes them into a container, in H.264.

    Attributes:
        out: The container.
        mask: What is hidden.
        time_base: Of the times of pictures, in seconds.
        longest: Pixels of the longer side at most; 0: any size.
        rate: Usual pictures a second; 0: not known.
        size: (width, height) of the result, which the first picture decides.
        frames: How many there are.
    """

    out: OutputContainer
    mask: PictureMask
    time_base: Fraction
    longest: int = 0
    rate: Fraction = Fraction(0)
    size: tuple[int, int] = (0, 0)
    frames: int = 0
    _painter: Painter = field(init=False)
    _context: VideoCodecContext | None = None
    _geometry: Geometry | None = None

    def __post_init__(self) -> None:
        self._painter = Painter(self.mask)

    def add(self, frame: av.VideoFrame, turn: tuple[int, bool]) -> None:
        """Encode a picture.

        Args:
            frame: As it was decoded, its `pts` in the time base.
            turn: (degrees clockwise, mirrored first) that bring it upright.
        """
        coded = frame.width, frame.height
        if self._context is None:
            self.size = _size_of(coded, turn[0], self.longest)
            self._context = self._begin()
        geometry = self._geometry
        if geometry is None or (geometry.width, geometry.height) != coded:
            geometry = Geometry.fitted(coded, self.size, Fit.CONTAIN, rotation=turn[0], mirror=turn[1])
            self._geometry = geometry
        picture = av.VideoFrame.from_ndarray(self._painter.paint(frame, geometry), format="rgb24")
        picture.pts, picture.time_base = frame.pts, self.time_base
        self.frames += 1
        self.out.mux(self._context.encode(picture))

    def finish(self) -> None:
        """Write what the encoder still holds.

        Raises:
            CodecError: With NO_FRAMES.
        """
        if self._context is None:
            raise CodecError(Reason.NO_FRAMES, "no picture of this time can be decoded")
        self.out.mux(self._context.encode(None))

    def _begin(self) -> VideoCodecContext:
        stream = self.out.add_stream("libx264", options=_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = *self.size, "yuv420p"
        context = stream.codec_context
        stream.time_base = context.time_base = self.time_base
        if self.rate:
            context.framerate = self.rate
        context.gop_size, context.max_b_frames = _KEY_EVERY, 0
        return context


@contextmanager
def _telling_failures(what: str) -> Iterator[None]:
    """Of an encoder's failure what could not be made.

    Raises:
        CodecError: With NO_DECODER or UNREADABLE.
    """
    try:
        yield
    except av.error.EncoderNotFoundError:
        raise CodecError(
            Reason.NO_DECODER, "this FFmpeg has no libx264 to encode masked footage with"
        ) from None
    except (av.error.FFmpegError, ValueError) as error:
        raise CodecError(Reason.UNREADABLE, f"{what} could not be encoded ({error})") from None


def _size_of(coded: tuple[int, int], rotation: int, longest: int) -> tuple[int, int]:
    """(width, height) of encoded pictures, upright and even; `longest` limits them unless it is 0."""
    width, height = coded[::-1] if rotation in (90, 270) else coded
    scale = min(1.0, longest / max(width, height)) if longest else 1.0
    return max(2, round(width * scale) // 2 * 2), max(2, round(height * scale) // 2 * 2)


def _frames(data: bytes, shown_us: Collection[int]) -> Iterator[av.VideoFrame]:
    """The pictures to show, in their order."""
    # Times are those that were written, not what an edit list makes of them.
    with av.open(io.BytesIO(data), format="mov", options={"ignore_editlist": "1"}) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        last_us: int | None = None
        for frame in container.decode(stream):
            if frame.pts is None:
                continue
            at_us = round(frame.pts * cast(Fraction, frame.time_base) * 1_000_000)
            if at_us in shown_us and (last_us is None or at_us > last_us):
                last_us = frame.pts = at_us
                yield frame
