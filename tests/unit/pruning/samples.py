"""Small block maps and frames to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookout.video.motion import FrameInfo, Picture, PredictionBlocks, PredictionKind


@dataclass(frozen=True)
class Block:
    """One prediction block."""

    x: int
    y: int
    w: int = 8
    h: int = 8
    dx: float = 0.0
    dy: float = 0.0
    kind: PredictionKind = PredictionKind.INTER
    source: int = -1


def prediction_blocks(blocks: Sequence[Block]) -> PredictionBlocks:
    """The blocks as the codec room hands them over."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(b, name) for b in blocks], dtype)

    return PredictionBlocks(
        column("x", np.int16),
        column("y", np.int16),
        column("w", np.int16),
        column("h", np.int16),
        column("dx", np.float32),
        column("dy", np.float32),
        column("kind", np.uint8),
        column("source", np.int8),
    )


def frame(
    index: int, picture: Picture = Picture.P, *, corrupt: bool = False, jump: bool = False
) -> FrameInfo:
    """A frame of 64x48."""
    return FrameInfo(
        index=index,
        time_us=index * 40_000,
        picture=picture,
        key=picture is Picture.I,
        corrupt=corrupt,
        interlaced=False,
        width=64,
        height=48,
        jump=jump,
    )


def tiling(
    width: int, height: int, size: int, dx: float = 0.0, dy: float = 0.0, *, source: int = -1
) -> list[Block]:
    """Blocks that cover a picture whole."""
    return [
        Block(x, y, size, size, dx, dy, source=source)
        for y in range(0, height, size)
        for x in range(0, width, size)
    ]
