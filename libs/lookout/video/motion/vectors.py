"""Motion vectors of one or several frames, converted to prediction blocks on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from lookout.video.motion.types import PredictionBlocks, PredictionKind, VectorSource

H264_SCALE = 4
# libavutil's AVMotionVector
RECORD = np.dtype(
    {
        "names": ["source", "w", "h", "dst_x", "dst_y", "motion_x", "motion_y", "motion_scale"],
        "formats": ["<i4", "u1", "u1", "<i2", "<i2", "<i4", "<i4", "<u2"],
        "offsets": [0, 4, 5, 10, 12, 24, 28, 32],
        "itemsize": 40,
    }
)


@dataclass(frozen=True, slots=True)
class ExportedVectors:
    """A copy of the motion vectors that FFmpeg exported for one frame, converted to blocks on demand.

    raw: records of libavutil's AVMotionVector, 40 bytes each; interlaced: the picture is interlaced.
    """

    raw: bytes
    interlaced: bool

    def __len__(self) -> int:
        return len(self.raw) // RECORD.itemsize

    def blocks(self) -> PredictionBlocks:
        """Return the frame's prediction blocks."""
        return _converted(np.frombuffer(self.raw, RECORD), self.interlaced)


def joined(sources: Sequence[VectorSource]) -> tuple[PredictionBlocks, npt.NDArray[np.intp]]:
    """Return the concatenated blocks of several frames, and each block's frame (its position in
    `sources`).
    """
    owner = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
    exported = [source for source in sources if isinstance(source, ExportedVectors)]
    if len(exported) == len(sources) and len({source.interlaced for source in exported}) == 1:
        raw = b"".join([source.raw for source in exported])
        return _converted(np.frombuffer(raw, RECORD), exported[0].interlaced), owner
    parts = [source.blocks() for source in sources]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in (column.name for column in fields(PredictionBlocks))
    }
    return PredictionBlocks(**columns), owner


def _converted(vectors: Any, interlaced: bool) -> PredictionBlocks:
    """Convert FFmpeg's records to blocks.

    FFmpeg gives block centres, motion in 1/motion_scale pixels (4 for H.264, 2 for MPEG-1/2/4), and does not
    mark skip blocks. Field macroblocks of interlaced H.264 come with vertical motion in frame lines (doubled
    by FFmpeg) if they are 16x8 or 8x16, and in field lines if they are 16x16 or 8x8. The records do not
    distinguish field from frame macroblocks. Moving parts of an interlaced picture are mostly coded as
    fields, so the motion of 16x16 and 8x8 macroblocks is doubled here as well. That is exact for field
    macroblocks and an upper bound for frame macroblocks. Still blocks stay still.
    """
    w, h = vectors["w"].astype(np.int16), vectors["h"].astype(np.int16)
    scale = np.maximum(vectors["motion_scale"], 1).astype(np.float32)
    dx, dy = (np.divide(vectors[name], scale, dtype=np.float32) for name in ("motion_x", "motion_y"))
    if interlaced:
        dy[(w == h) & (scale == H264_SCALE)] *= 2
    return PredictionBlocks(
        x=vectors["dst_x"] - (w >> 1),
        y=vectors["dst_y"] - (h >> 1),
        w=w,
        h=h,
        dx=dx,
        dy=dy,
        kind=np.full(len(w), PredictionKind.INTER, np.uint8),
        source=vectors["source"].astype(np.int8),
    )
