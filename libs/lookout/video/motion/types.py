"""Types for the motion of decoded frames. This module does not need FFmpeg."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lookout.video.motion.geometry import Geometry

if TYPE_CHECKING:
    import torch

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
#: uint8 [height, width]; a tensor where the picture stays on a device
Luma: TypeAlias = "U8 | torch.Tensor"


class PredictionKind(IntEnum):
    """How a block was predicted. The software decoders do not distinguish skip from inter: both are INTER."""

    UNKNOWN = 0
    INTER = 1
    SKIP = 2
    INTRA = 3


class Picture(IntEnum):
    """Picture type, numbered as in FFmpeg's AVPictureType."""

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
        """Whether no block can refer to another picture."""
        return self in (Picture.I, Picture.SI, Picture.BI)


class Basis(StrEnum):
    """The data from which a motion grid is made."""

    VECTORS = "vectors"
    LUMA = "luma"  # the prune stage must compare pixels
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PredictionBlocks:
    """Prediction blocks of one decoded inter frame; one entry per block and reference list.

    Positions and sizes are pixels of the coded picture (before rotation and crop), x and y the top left
    corner and not clipped: blocks of the last row or column may reach beyond the picture. (dx, dy) point
    from the block to its reference, in pixels: the content sits at (x, y) and was taken from (x + dx, y +
    dy). With the software decoders, intra blocks are absent: an area that no block covers is new content.

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
        """Return itself, to satisfy `VectorSource`."""
        return self

    def take(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> PredictionBlocks:
        """Return the blocks that a mask or an index array selects."""
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
    jump: bool = False  # the container's clock jumped; time_us continues at the nominal rate


@dataclass(frozen=True, slots=True)
class Motion:
    """Motion gathered on the model's patch grid since the previous sampled frame.

    v: float16 [rows, cols], displacement in model-input pixels per sample step, +inf where the content is new
    (intra); r: float16 [rows, cols], mean absolute luma residual (0..255), or None. Both are None unless
    basis is VECTORS.
    """

    basis: Basis
    v: F16 | None = None
    r: F16 | None = None


class VectorSource(Protocol):
    """The motion of one frame: its prediction blocks, or data from which these are computed on demand."""

    def __len__(self) -> int: ...

    def blocks(self) -> PredictionBlocks:
        """Return the frame's prediction blocks."""


class Gather(Protocol):
    """Turns block maps into motion grids while frames are decoded.

    A sandboxed decoder recreates it from its settings (`lookout.video.sandbox.jobs.PortableGather`).
    """

    @property
    def needs_all(self) -> bool:
        """Whether `push` must also be given unsampled pictures that nothing refers to; otherwise they are
        not decoded."""

    @property
    def needs_luma(self) -> bool:
        """Whether `push` must be given the luma plane of every frame."""

    def start(self, geometry: Geometry) -> None:
        """Begin a segment, or restart because the coded size changed within the segment."""

    def push(self, frame: FrameInfo, blocks: VectorSource | None, luma: Luma | None) -> None:
        """Add one decoded frame, in presentation order. `blocks` is None for intra pictures,
        damaged frames without vectors and codecs that export none; `luma` is valid during the
        call only if it is an array."""

    def sample(self, frame: FrameInfo) -> None:
        """Mark the last pushed frame as sampled; from here on, motion is measured relative to it."""

    def motions(self) -> list[Motion]:
        """Return the motion at every sample since the last call, in order, each relative to the sample
        before it."""
