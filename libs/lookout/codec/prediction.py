"""FFmpeg's exported motion vectors -> `PredictionBlocks`."""

from __future__ import annotations

from typing import Any

import av
import numpy as np

from lookout.codec.types import PredictionBlocks, PredictionKind

H264_SCALE = 4


def prediction_blocks(frame: av.VideoFrame) -> PredictionBlocks | None:
    """The blocks of a frame, None where the decoder exported none (intra pictures, codecs without vectors).

    FFmpeg gives block centres, motion in 1/motion_scale pixels (4 for H.264, 2 for MPEG-1/2/4) and skip
    blocks like any other. Field macroblocks of interlaced H.264 come with their vertical motion in frame
    lines (doubled by FFmpeg) if they are 16x8 or 8x16, and in field lines if they are 16x16 or 8x8. Nothing
    in the list tells field from frame macroblocks, but what moves in an interlaced picture is mostly coded
    as fields: the latter are doubled here as well, which is exact for field and an upper bound for frame
    macroblocks. Still blocks stay still."""
    side = frame.side_data.get("MOTION_VECTORS")
    if side is None or len(side) == 0:
        return None
    vectors: Any = side.to_ndarray()
    w, h = vectors["w"].astype(np.int16), vectors["h"].astype(np.int16)
    scale = np.maximum(vectors["motion_scale"], 1).astype(np.float32)
    lines = np.ones_like(scale)
    if frame.interlaced_frame:
        lines[(w == h) & (scale == H264_SCALE)] = 2
    return PredictionBlocks(
        x=vectors["dst_x"] - w // 2,
        y=vectors["dst_y"] - h // 2,
        w=w,
        h=h,
        dx=vectors["motion_x"].astype(np.float32) / scale,
        dy=vectors["motion_y"].astype(np.float32) * lines / scale,
        kind=np.full(len(w), PredictionKind.INTER, np.uint8),
        source=vectors["source"].astype(np.int8),
    )
