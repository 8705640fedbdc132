"""Bytes of one segment to sampled frames and block maps, and the cutting of streams into segments.

Only the records are imported at once; whatever needs FFmpeg is imported when it is first named, so that
rooms which only read records need no decoder installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.segments.inspection import Inspection
from lookout.segments.sampling import Expected, SamplingGrid, Tail
from lookout.segments.types import (
    CodecError,
    CutRequest,
    DecodedSegment,
    DecodeRequest,
    Limits,
    Reason,
    SampledFrame,
    Segment,
    SegmentFacts,
)

if TYPE_CHECKING:
    from lookout.segments.cutting import cut
    from lookout.segments.decoder import Decoder, SoftwareDecoder

_NEEDS_FFMPEG = {
    "Decoder": "decoder",
    "SoftwareDecoder": "decoder",
    "cut": "cutting",
}

__all__ = [
    "CodecError",
    "CutRequest",
    "DecodeRequest",
    "DecodedSegment",
    "Decoder",
    "Expected",
    "Inspection",
    "Limits",
    "Reason",
    "SampledFrame",
    "SamplingGrid",
    "Segment",
    "SegmentFacts",
    "SoftwareDecoder",
    "Tail",
    "cut",
]


__getattr__ = lazy_names(__name__, _NEEDS_FFMPEG)
