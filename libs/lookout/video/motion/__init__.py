"""Motion that codecs report, and the maps between coded picture, model input and patch grid.

Only `prediction`, which reads the vectors of FFmpeg's frames, needs FFmpeg.
"""

from lookout.video.motion.geometry import Fit as Fit, Geometry as Geometry
from lookout.video.motion.grids import pack_mask as pack_mask, unpack_mask as unpack_mask
from lookout.video.motion.hiding import MaskLayer as MaskLayer, PictureMask as PictureMask
from lookout.video.motion.types import (
    Basis as Basis,
    FrameInfo as FrameInfo,
    Luma as Luma,
    Motion as Motion,
    Picture as Picture,
    PredictionBlocks as PredictionBlocks,
    PredictionKind as PredictionKind,
    VectorSource as VectorSource,
)
from lookout.video.motion.vectors import joined as joined
