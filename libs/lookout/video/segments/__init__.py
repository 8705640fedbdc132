"""Turns the bytes of one segment into sampled frames and block maps, and cuts streams into segments.

Only plain data types are imported at once. Names that need FFmpeg are imported lazily, when first used, so
that services which only read records need no decoder installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.video.segments.inspection import Inspection as Inspection
from lookout.video.segments.sampling import (
    Expected as Expected,
    SamplingGrid as SamplingGrid,
    Tail as Tail,
    is_other_footage as is_other_footage,
)
from lookout.video.segments.types import (
    CodecError as CodecError,
    CutRequest as CutRequest,
    DecodedSegment as DecodedSegment,
    DecodeRequest as DecodeRequest,
    Limits as Limits,
    Reason as Reason,
    SampledFrame as SampledFrame,
    Segment as Segment,
    SegmentFacts as SegmentFacts,
)

if TYPE_CHECKING:
    from lookout.video.segments.cutting import cut as cut
    from lookout.video.segments.decoder import Decoder as Decoder, SoftwareDecoder as SoftwareDecoder

__getattr__ = lazy_names(__name__)
