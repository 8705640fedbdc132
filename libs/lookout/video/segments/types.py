"""Requests to a decoder and its results. This module does not need FFmpeg.

Three clocks occur, always in integer microseconds:

* container time: what the container's time stamps say, unwrapped within one segment;
* segment time: container time minus the segment's first time stamp;
* stream time: time since the start of a camera's stream epoch; sampling happens on a grid in stream time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from lookout.errors import LookoutError
from lookout.video.motion.geometry import Fit, Geometry
from lookout.video.motion.hiding import PictureMask
from lookout.video.motion.types import Basis, FrameInfo, Gather, Motion
from lookout.video.segments.sampling import LATE_US, Expected, SamplingGrid, Tail

U8 = npt.NDArray[np.uint8]


class Reason(StrEnum):
    """Why bytes could not be decoded. The value appears in the header of a dead letter."""

    EMPTY = "empty"
    UNREADABLE = "unreadable"  # no allowed demuxer recognises it, or the container is damaged beyond use
    NO_VIDEO = "no-video"
    NO_DECODER = "no-decoder"
    NO_KEYFRAME = "no-keyframe"  # does not start at a keyframe
    NO_FRAMES = "no-frames"
    BYTES = "too-many-bytes"
    DIMENSIONS = "too-large-pictures"
    LENGTH = "too-long"
    MEMORY = "out-of-memory"
    POISON = "poison"  # killed or hung the decoder twice
    REQUEST = "bad-request"
    UNAVAILABLE = "unavailable"  # this back end cannot run here
    CLOSED = "closed"


class CodecError(LookoutError):
    """A decoding failure or invalid request, with a machine-readable reason and one sentence for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[CodecError], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


CLIP_CODECS = ("h264", "hevc", "av1", "vp9")
"""Codecs that browsers play in MP4."""


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """A frame chosen by the grid; its pixels are row i of `DecodedSegment.pixels`, where i is its index in
    `DecodedSegment.frames`."""

    info: FrameInfo
    slot: int  # the grid point: stream time slot * step_us
    stream_us: int  # stream time of the frame
    motion: Motion | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a decoded segment."""

    container: str
    codec: str
    profile: str
    width: int
    height: int
    rotation: int  # degrees clockwise that turn the coded picture upright
    fps: float
    timed: bool  # False: no time stamps, time counted at `fps`
    first_us: int  # container time of the first frame
    end_us: int  # container time at which the last frame ends
    bytes: int
    packets: int
    frames: int
    decoded: int  # of these, those that were decoded because a sample needed them
    keyframes: int
    intra: int  # I-pictures decoded, key or not
    corrupt: int  # frames decoded with damage
    refused: int  # packets that the decoder rejected
    leading_lost: int  # leading pictures whose references lie before the segment
    jumps: int
    sizes: int  # number of different coded sizes
    interlaced: int
    has_vectors: bool
    backend: str = "software"

    @property
    def fallback(self) -> Basis:
        """The basis of motion for this segment: vectors if the codec exports them, else luma."""
        return Basis.VECTORS if self.has_vectors else Basis.LUMA


@dataclass(frozen=True, slots=True)
class DecodedSegment:
    """The sampled frames of one segment, at model-input size.

    pixels: uint8 [n, height, width, 3], RGB. `continued` is False if `DecodeRequest.expected` did not
    hold, so that the grid restarts at the segment's first frame.
    """

    pixels: U8
    frames: tuple[SampledFrame, ...]
    facts: SegmentFacts
    geometry: Geometry
    continued: bool
    next_slot: int  # the first slot a following segment may fill
    end_stream_us: int  # stream time at which the last frame ends

    def following(self, late_us: int = LATE_US) -> Expected:
        """Return where the camera's next segment is expected to begin.

        Args:
            late_us: How late it may begin, in microseconds.
        """
        end = self.facts.end_us
        return Expected(epoch_us=end - self.end_stream_us, next_us=end, late_us=late_us)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one segment. Exceeding one raises `CodecError` with BYTES, DIMENSIONS or LENGTH.

    Attributes:
        bytes: Size of the segment.
        side: Pixels of a picture's longer side.
        pixels: Pixels of a picture. Cameras of 12 megapixels, of 5.3K, and dual ones are common.
        seconds: Duration from its first picture to its last. A time lapse has few pictures over a long time.
        frames: Number of pictures.
    """

    bytes: int = 16 * 1024 * 1024
    side: int = 16_384
    pixels: int = 36_000_000
    seconds: float = 86_400.0
    frames: int = 20_000


SAMPLED_BYTES = 256 * 1024 * 1024
"""Most bytes of sampled pixels of one segment, which a decoder process and its parent both keep in memory."""
FILE_LIMITS = Limits(bytes=1 << 50, seconds=1e9, frames=1 << 40)
"""Limits of a whole recording."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """How to decode a segment.

    width, height: size of the model's input; fit: how the upright picture is fitted into it; grid: when to
    sample; expected: where the camera's stream should continue, or None to begin an epoch; first_slot: grid
    points below this one are taken; tail: whether the last grid cell is left to the next segment; frames:
    exact presentation indexes to sample instead of the grid (to recreate a stored result); gather: what to
    run on every frame; vectors: False skips block maps; mask: areas hidden in every picture.
    """

    width: int
    height: int
    grid: SamplingGrid = field(default_factory=SamplingGrid)
    fit: Fit = Fit.STRETCH
    expected: Expected | None = None
    first_slot: int = 0
    tail: Tail = Tail.KEEP
    frames: tuple[int, ...] | None = None
    gather: Gather | None = None
    vectors: bool = True
    limits: Limits = field(default_factory=Limits)
    mask: PictureMask | None = None

    def __post_init__(self) -> None:
        if not (0 < self.width <= 8192 and 0 < self.height <= 8192):
            raise CodecError(
                Reason.REQUEST, f"model input {self.width}x{self.height} is not between 1x1 and 8192x8192"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """One independently decodable piece.

    data: MPEG-TS. Or fragmented MP4 or MOV, for codecs and rotated pictures that MPEG-TS cannot carry. Or MP4
    or MOV with an edit list that hides pictures at the beginning or end of the piece. Or an elementary
    stream, if the source has no time stamps.
    start_us: time of the piece's first keyframe since the source's first keyframe, or since the source's
    first picture that is shown; duration_us: until the next piece's keyframe (for the last piece, to the end
    of its last frame); frames: packets in the piece, except those that its edit list hides; index: 0, 1, 2,
    ...; container: FFmpeg's name; jump: the source's clock jumped right before the piece.
    """

    data: bytes
    start_us: int
    duration_us: int
    frames: int
    index: int
    container: str
    jump: bool = False


@dataclass(frozen=True, slots=True)
class CutRequest:
    """Cut pieces of a file, beginning with piece `first`: at least one, and as many as are needed to reach
    `limit` bytes. `target_s` and `max_bytes` are those of `cut`."""

    path: str
    target_s: float
    max_bytes: int
    first: int = 0
    limit: int = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClipSegment:
    """One segment of a clip.

    Attributes:
        data: The segment's bytes.
        epoch: Stream epoch.
        origin_us: Stream time minus container time.
        wall_offset_us: Unix time minus stream time.
    """

    data: bytes = field(repr=False)
    epoch: int
    origin_us: int
    wall_offset_us: int


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A clip to make from segments.

    Attributes:
        segments: In time order.
        from_us: Begin, Unix microseconds.
        to_us: End, excluded.
        max_bytes: Largest clip.
        at_us: Clip time at which the clip's first picture is shown.
        fragment: Number of the clip's first fragment, if it continues another clip; 0: a complete clip, with
            an index.
        mask: Areas hidden in every picture; the clip is then re-encoded.
    """

    segments: tuple[ClipSegment, ...]
    from_us: int
    to_us: int
    max_bytes: int
    at_us: int = 0
    fragment: int = 0
    mask: PictureMask | None = None


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """Re-encode a segment with a mask, into at most `max_bytes`."""

    mask: PictureMask
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ClipSpan:
    """A stretch of a clip without a hole.

    Attributes:
        at_us: Where it begins in the clip.
        start_us: Camera time at its beginning, Unix microseconds.
        end_us: Camera time at its end, Unix microseconds.
    """

    at_us: int
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class JoinedClip:
    """A playable file, without sound.

    Attributes:
        data: Fragmented MP4.
        codec: h264, hevc, av1 or vp9.
        codecs: The codec's name in media types (RFC 6381), such as avc1.64001f.
        width: Coded width of its first pictures.
        height: Coded height of its first pictures.
        frames: Pictures that it shows.
        spans: The stretches of time that it shows; there are holes between them.
        end_us: Clip time at which its last picture ends.
        masked: Whether it was re-encoded with a mask.
    """

    data: bytes = field(repr=False)
    codec: str
    codecs: str
    width: int
    height: int
    frames: int
    spans: tuple[ClipSpan, ...]
    end_us: int
    masked: bool = False
