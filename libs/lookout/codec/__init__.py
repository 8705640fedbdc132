"""Bytes to sampled frames and block maps.

Only the records are imported at once; whatever needs FFmpeg is imported when it is first named, so that
rooms which only read records need no decoder installed."""

from __future__ import annotations

from lookout.codec.types import (
    Basis,
    BlockKind,
    BlockMap,
    CodecError,
    Decoded,
    DecodeRequest,
    Expected,
    Fit,
    FrameInfo,
    Gather,
    Geometry,
    Limits,
    Motion,
    Picture,
    Reason,
    SampledFrame,
    SamplingGrid,
    SegmentFacts,
    Tail,
)

__all__ = [
    "Basis",
    "BlockKind",
    "BlockMap",
    "CodecError",
    "DecodeRequest",
    "Decoded",
    "Expected",
    "Fit",
    "FrameInfo",
    "Gather",
    "Geometry",
    "Limits",
    "Motion",
    "Picture",
    "Reason",
    "SampledFrame",
    "SamplingGrid",
    "SegmentFacts",
    "Tail",
]
