"""What codecs say about motion, and the maps between coded picture, model input and patch grid.

Nothing here needs FFmpeg but `prediction`, which reads the vectors of FFmpeg's frames.
"""

from lookout.motion.geometry import Fit, Geometry
from lookout.motion.grids import pack_mask, unpack_mask
from lookout.motion.types import (
    Basis,
    FrameInfo,
    Gather,
    Motion,
    Picture,
    PredictionBlocks,
    PredictionKind,
    VectorSource,
)
from lookout.motion.vectors import joined

__all__ = [
    "Basis",
    "Fit",
    "FrameInfo",
    "Gather",
    "Geometry",
    "Motion",
    "Picture",
    "PredictionBlocks",
    "PredictionKind",
    "VectorSource",
    "joined",
    "pack_mask",
    "unpack_mask",
]
