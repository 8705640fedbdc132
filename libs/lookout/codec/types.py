"""Records the codec room hands to others. Nothing here needs FFmpeg.

Three clocks appear and are always integer microseconds:

* container time: what the container's time stamps say, unwrapped within one segment;
* segment time: container time minus the segment's first time stamp;
* stream time: time since the start of a camera's stream epoch; sampling happens on a grid in stream time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lookout.codec.geometry import Fit, Geometry
from lookout.codec.sampling import Expected, SamplingGrid, Tail
from lookout.errors import LookoutError

__all__ = [
    "Basis",
    "CodecError",
    "DecodeRequest",
    "DecodedSegment",
    "Expected",
    "Fit",
    "FrameInfo",
    "Gather",
    "Geometry",
    "Limits",
    "Motion",
    "Picture",
    "PredictionBlocks",
    "PredictionKind",
    "Reason",
    "SampledFrame",
    "SamplingGrid",
    "SegmentFacts",
    "Tail",
    "VectorSource",
]

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]


class Reason(StrEnum):
    """Why bytes did not become frames. The value is what a dead letter's header carries."""

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
    """Bytes that cannot be decoded, with a machine-readable reason and one sentence for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[CodecError], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class PredictionKind(IntEnum):
    """How a block was predicted. The software decoders cannot tell skip from inter: both read INTER."""

    UNKNOWN = 0
    INTER = 1
    SKIP = 2
    INTRA = 3


class Picture(IntEnum):
    """Picture type, numbered as FFmpeg's AVPictureType."""

    UNKNOWN = 0
    I = 1  # noqa: E741
    P = 2
    B = 3
    S = 4
    SI = 5
    SP = 6
    BI = 7

    @property
    def intra(self) -> bool:
        """True where no block can refer to another picture."""
        return self in (Picture.I, Picture.SI, Picture.BI)


class Basis(StrEnum):
    """What a motion grid rests on."""

    VECTORS = "vectors"
    LUMA = "luma"  # the prune stage must compare pixels
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PredictionBlocks:
    """Prediction blocks of one decoded inter frame; one entry per block and reference list.

    Positions and sizes are pixels of the coded picture (before rotation and crop), x and y the top left
    corner and not clipped: blocks of the last row or column may reach beyond the picture. (dx, dy) point
    from the block to its reference, in pixels: the content sits at (x, y) and was taken from (x + dx, y +
    dy). Intra blocks are absent with the software decoders: an area no block covers is new content.

    x, y, w, h: int16 [n]; dx, dy: float32 [n]; kind: uint8 [n] (`PredictionKind`); source: int8 [n], -1 for
    list 0 (past), 1 for list 1. The distance to the reference, in frames, is not known."""

    x: I16
    y: I16
    w: I16
    h: I16
    dx: F32
    dy: F32
    kind: U8
    source: I8

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def blocks(self) -> PredictionBlocks:
        """Itself (`VectorSource`)."""
        return self

    def take(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> PredictionBlocks:
        """The blocks a mask or an index array names."""
        return PredictionBlocks(
            self.x[index],
            self.y[index],
            self.w[index],
            self.h[index],
            self.dx[index],
            self.dy[index],
            self.kind[index],
            self.source[index],
        )


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One decoded frame. `index` counts the segment's decoded frames in presentation order from 0."""

    index: int
    time_us: int  # segment time, strictly rising
    picture: Picture
    key: bool
    corrupt: bool
    interlaced: bool
    width: int
    height: int
    jump: bool = False  # the container's clock jumped here; time_us goes on at the nominal rate


@dataclass(frozen=True, slots=True)
class Motion:
    """Motion gathered on the model's patch grid since the previous sampled frame.

    v: float16 [rows, cols], model-input pixels per sample step, +inf where the content is
    new (intra); r: float16 [rows, cols], mean absolute luma residual (0..255), or None. Both
    are None unless basis is VECTORS."""

    basis: Basis
    v: F16 | None = None
    r: F16 | None = None


class VectorSource(Protocol):
    """The motion of one frame: its prediction blocks, or what they can be made from."""

    def __len__(self) -> int: ...

    def blocks(self) -> PredictionBlocks:
        """The frame's prediction blocks."""


class Gather(Protocol):
    """Turns block maps into motion grids while frames are decoded.

    In a sandbox it is made again from its settings (`lookout.codec.jobs.PortableGather`)."""

    @property
    def needs_all(self) -> bool:
        """True to receive also the unsampled pictures that nothing refers to; else they are not decoded."""

    @property
    def needs_luma(self) -> bool:
        """True to receive the luma plane of every frame (costs a conversion
        for pictures deeper than 8 bit)."""

    def start(self, geometry: Geometry) -> None:
        """Begin a segment, or begin again because the coded size changed within it."""

    def push(self, frame: FrameInfo, blocks: VectorSource | None, luma: U8 | None) -> None:
        """Take one decoded frame, in presentation order. `blocks` is None for intra pictures,
        damaged frames without vectors and codecs that export none; `luma` is uint8 [height,
        width], valid during the call only."""

    def sample(self, frame: FrameInfo) -> None:
        """The frame last pushed is sampled: motion begins anew."""

    def motions(self) -> list[Motion]:
        """Motion at every sample since the last call, each since the sample before it; in order."""


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """A frame chosen by the grid; its pixels are row i of `DecodedSegment.pixels`."""

    info: FrameInfo
    slot: int  # the grid point: stream time slot * step_us
    stream_us: int  # the frame's own stream time
    motion: Motion | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the bytes turned out to be."""

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
    decoded: int  # of these; what no sample needed was left out
    keyframes: int
    intra: int  # I-pictures decoded, key or not
    corrupt: int  # frames decoded with damage
    refused: int  # packets the decoder would not take
    leading_lost: int  # leading pictures whose references lie before the segment
    jumps: int
    sizes: int  # number of different coded sizes met
    interlaced: int
    has_vectors: bool
    backend: str = "software"

    @property
    def fallback(self) -> Basis:
        """What motion must rest on for this segment."""
        return Basis.VECTORS if self.has_vectors else Basis.LUMA


@dataclass(frozen=True, slots=True)
class DecodedSegment:
    """The sampled frames of one segment, at model-input size.

    pixels: uint8 [n, height, width, 3], RGB. `continued` is False where `DecodeRequest.expected` did not
    hold, and the grid therefore starts anew at the segment's first frame."""

    pixels: U8
    frames: tuple[SampledFrame, ...]
    facts: SegmentFacts
    geometry: Geometry
    continued: bool
    next_slot: int  # the first slot a following segment may fill
    end_stream_us: int  # stream time at which the last frame ends

    def following(self) -> Expected:
        """What to expect of the camera's next segment."""
        end = self.facts.end_us
        return Expected(epoch_us=end - self.end_stream_us, next_us=end)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one segment may cost. Exceeding one is a `CodecError` with BYTES, DIMENSIONS or LENGTH."""

    bytes: int = 16 * 1024 * 1024
    side: int = 8192
    pixels: int = 4096 * 2304
    seconds: float = 120.0
    frames: int = 20_000


FILE_LIMITS = Limits(bytes=1 << 50, seconds=1e9, frames=1 << 40)
"""What a whole recording may cost."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """What to make of a segment.

    width, height: size of the model's input; fit: how the upright picture meets it; grid: when to sample;
    expected: where the camera's stream should go on, None to begin an epoch; first_slot: grid points below
    it are taken; tail: whether the last grid cell is left to the next segment; frames: exact presentation
    indexes to sample instead of the grid (to make a stored result again); gather: run on every frame;
    vectors: False skips block maps."""

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

    def __post_init__(self) -> None:
        if not (0 < self.width <= 8192 and 0 < self.height <= 8192):
            raise CodecError(
                Reason.REQUEST, f"model input {self.width}x{self.height} is not between 1x1 and 8192x8192"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """One independently decodable piece.

    data: MPEG-TS; or fragmented MP4 or MOV for codecs and turned pictures MPEG-TS cannot carry; or an
    elementary stream where the source has no time stamps; start_us: time of its first keyframe since the
    source's; duration_us: until the next piece's keyframe (for the last: to the end of its last frame);
    frames: packets it holds; index: 0, 1, 2, ...; container: FFmpeg's name; jump: the
    source's clock jumped right before it."""

    data: bytes
    start_us: int
    duration_us: int
    frames: int
    index: int
    container: str
    jump: bool = False


@dataclass(frozen=True, slots=True)
class CutRequest:
    """Pieces of a file, from piece `first` on, at least one and as many as fill `limit` bytes. `target_s` and
    `max_bytes` are those of `cut`."""

    path: str
    target_s: float
    max_bytes: int
    first: int = 0
    limit: int = 2 * 1024 * 1024
