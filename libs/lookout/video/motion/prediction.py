"""Reads the motion vectors that FFmpeg exports."""

from __future__ import annotations

import av

from lookout.video.motion.side_data import side_data
from lookout.video.motion.types import PredictionBlocks
from lookout.video.motion.vectors import ExportedVectors


def exported_vectors(frame: av.VideoFrame) -> ExportedVectors | None:
    """Return the vectors of a frame; None for intra pictures and codecs without vectors."""
    side = side_data(frame, "MOTION_VECTORS")
    if side is None or len(side) == 0:
        return None
    return ExportedVectors(bytes(side), bool(frame.interlaced_frame))


def prediction_blocks(frame: av.VideoFrame) -> PredictionBlocks | None:
    """Return the prediction blocks of a frame; None if the decoder exported none."""
    vectors = exported_vectors(frame)
    return None if vectors is None else vectors.blocks()
