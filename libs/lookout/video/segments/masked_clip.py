"""Re-encodes footage of masked cameras with grey areas, so that no original packet is passed on."""

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

#: maximum length of a clip's longer side in pixels: it is enough for a viewer, and a sandboxed process can
#: encode such a clip on one core
LONGEST_SIDE: Final = 1280
_KEY_EVERY: Final = 50  # pictures
_TS_TICKS: Final = 90_000  # of a second, in MPEG-TS
_OPTIONS: Final = {"preset": "veryfast", "tune": "zerolatency", "crf": "23", "threads": "1"}


@dataclass(frozen=True, slots=True)
class MaskedClip:
    """data: fragmented MP4; width, height: size of its pictures, which are upright; frames: their number."""

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
    """Re-encode a clip in H.264, with a mask.

    Args:
        data: MP4 with times in microseconds.
        mask: The hidden areas.
        turn: (degrees clockwise, mirrored first) that brings its pictures upright.
        shown_us: Times of the pictures to include; others are only decoded as references.
        options: Options of the MP4 muxer.

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
    """Re-encode a segment in H.264 with a mask and the same times, for publishers that apply masks.

    Its pictures are upright and keep their size. The encoder chooses the keyframes, and its input contains
    only what may be seen.

    Args:
        data: The segment's bytes, in any container.
        mask: The hidden areas.
        max_bytes: Largest result.
        limits: Limits of the segment.

    Returns:
        MPEG-TS, or an elementary stream if the segment has no time stamps.

    Raises:
        CodecError: With NO_FRAMES, NO_DECODER, BYTES, LENGTH, or the reason why the segment cannot be read.
    """
    buffer, limits = io.BytesIO(), limits or Limits()
    with Video(data, vectors=False, limits=limits) as video, _telling_failures("a masked segment"):
        frames = video.frames()
        first = next(frames, None)
        if first is None:
            raise CodecError(Reason.NO_FRAMES, "none of its pictures can be decoded")
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
        mask: The hidden areas.
        time_base: Seconds per tick of the pictures' times.
        longest: Maximum pixels of the longer side; 0: any size.
        rate: Usual pictures a second; 0: unknown.
        size: (width, height) of the result, set by the first picture.
        frames: Pictures encoded so far.
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
            frame: The decoded frame, its `pts` in the time base.
            turn: (degrees clockwise, mirrored first) that brings it upright.
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
        """Write the pictures that are still in the encoder.

        Raises:
            CodecError: With NO_FRAMES.
        """
        if self._context is None:
            raise CodecError(Reason.NO_FRAMES, "none of the pictures of this time can be decoded")
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
    """Convert an encoder's failure into an error that names the output.

    Raises:
        CodecError: With NO_DECODER or UNREADABLE.
    """
    try:
        yield
    except av.error.EncoderNotFoundError:
        raise CodecError(
            Reason.NO_DECODER, "this FFmpeg lacks libx264, which encodes masked footage"
        ) from None
    except (av.error.FFmpegError, ValueError) as error:
        raise CodecError(Reason.UNREADABLE, f"{what} could not be encoded ({error})") from None


def _size_of(coded: tuple[int, int], rotation: int, longest: int) -> tuple[int, int]:
    """Return (width, height) of encoded pictures, upright and even; `longest` limits them unless it is 0."""
    width, height = coded[::-1] if rotation in (90, 270) else coded
    scale = min(1.0, longest / max(width, height)) if longest else 1.0
    return max(2, round(width * scale) // 2 * 2), max(2, round(height * scale) // 2 * 2)


def _frames(data: bytes, shown_us: Collection[int]) -> Iterator[av.VideoFrame]:
    """Yield the pictures to show, in order."""
    # Times must be those that were written, without the edit list.
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
