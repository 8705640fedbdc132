"""Clips of masked cameras: decoded, greyed and encoded again, since no packet may leave as it was filmed."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

import av
import av.error
from av.video.codeccontext import VideoCodecContext

from lookout.video.motion.geometry import Fit, Geometry
from lookout.video.motion.hiding import PictureMask
from lookout.video.segments.picture import Painter
from lookout.video.segments.types import CodecError, Reason

#: pixels of a clip's longer side: people look at it, and a sandboxed process encodes it on one core
LONGEST_SIDE: Final = 1280
_KEY_EVERY: Final = 50  # pictures
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
    painter = Painter(mask)
    geometry: Geometry | None = None
    size, frames = (0, 0), 0
    reread = lambda *_: io.BytesIO(buffer.getvalue())  # noqa: E731
    try:
        with av.open(buffer, "w", format="mp4", options=dict(options), io_open=reread) as out:
            context: VideoCodecContext | None = None
            for frame in _frames(data, shown_us):
                coded = frame.width, frame.height
                if context is None:
                    size = _size_of(coded, turn[0])
                    stream = out.add_stream("libx264", options=_OPTIONS)
                    stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
                    stream.time_base = stream.codec_context.time_base = Fraction(1, 1_000_000)
                    context = stream.codec_context
                    context.gop_size, context.max_b_frames = _KEY_EVERY, 0
                if geometry is None or (geometry.width, geometry.height) != coded:
                    geometry = Geometry.fitted(coded, size, Fit.CONTAIN, rotation=turn[0], mirror=turn[1])
                picture = av.VideoFrame.from_ndarray(painter.paint(frame, geometry), format="rgb24")
                picture.pts, picture.time_base = frame.pts, Fraction(1, 1_000_000)
                frames += 1
                out.mux(context.encode(picture))
            if context is None:
                raise CodecError(Reason.NO_FRAMES, "no picture of this time can be decoded")
            out.mux(context.encode(None))
    except av.error.EncoderNotFoundError:
        raise CodecError(
            Reason.NO_DECODER, "this FFmpeg has no libx264 to encode masked clips with"
        ) from None
    except (av.error.FFmpegError, ValueError) as error:
        raise CodecError(Reason.UNREADABLE, f"a masked clip could not be encoded ({error})") from None
    return MaskedClip(buffer.getvalue(), *size, frames)


def _size_of(coded: tuple[int, int], rotation: int) -> tuple[int, int]:
    """(width, height) of a clip's pictures, upright and even."""
    width, height = coded[::-1] if rotation in (90, 270) else coded
    scale = min(1.0, LONGEST_SIDE / max(width, height))
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
