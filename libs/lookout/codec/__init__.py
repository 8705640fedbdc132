"""Bytes to sampled frames and block maps.

Only the records are imported at once; whatever needs FFmpeg is imported when it is first named, so that
rooms which only read records need no decoder installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lookout.codec.grids import pack_mask, unpack_mask
from lookout.codec.inspection import Inspection
from lookout.codec.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.codec.survey import inspect, inspect_all
from lookout.codec.types import (
    Basis,
    CodecError,
    DecodedSegment,
    DecodeRequest,
    Expected,
    Fit,
    FrameInfo,
    Gather,
    Geometry,
    Limits,
    Motion,
    Picture,
    PredictionBlocks,
    PredictionKind,
    Reason,
    SampledFrame,
    SamplingGrid,
    Segment,
    SegmentFacts,
    Tail,
    VectorSource,
)
from lookout.codec.vectors import joined

if TYPE_CHECKING:
    from lookout.codec.cutting import cut
    from lookout.codec.decoder import Decoder, SoftwareDecoder
    from lookout.codec.opening import downloaded, open_recording
    from lookout.codec.parallel import FileDecoder, FileFrame
    from lookout.codec.reader import VideoReader
    from lookout.codec.recording import Gap, RecordingFacts, RecordingReader, Samples, Sampling
    from lookout.codec.sandboxed import SandboxedReader
    from lookout.codec.source import Source, UrlSource

_NEEDS_FFMPEG = {
    "Decoder": "decoder",
    "FileDecoder": "parallel",
    "FileFrame": "parallel",
    "Gap": "recording",
    "RecordingFacts": "recording",
    "RecordingReader": "recording",
    "Samples": "recording",
    "Sampling": "recording",
    "SandboxedReader": "sandboxed",
    "SoftwareDecoder": "decoder",
    "Source": "source",
    "UrlSource": "source",
    "VideoReader": "reader",
    "cut": "cutting",
    "downloaded": "opening",
    "open_recording": "opening",
}

__all__ = [
    "Basis",
    "CodecError",
    "DecodeRequest",
    "DecodedSegment",
    "Decoder",
    "Expected",
    "FileDecoder",
    "FileFrame",
    "Fit",
    "FrameInfo",
    "Gap",
    "Gather",
    "Geometry",
    "Inspection",
    "Limits",
    "Motion",
    "Picture",
    "PredictionBlocks",
    "PredictionKind",
    "Reason",
    "RecordingFacts",
    "RecordingReader",
    "SampledFrame",
    "Samples",
    "Sampling",
    "SamplingGrid",
    "SandboxError",
    "SandboxPool",
    "SandboxSettings",
    "SandboxedReader",
    "Segment",
    "SegmentFacts",
    "SoftwareDecoder",
    "Source",
    "Tail",
    "UrlSource",
    "VectorSource",
    "VideoReader",
    "cut",
    "downloaded",
    "inspect",
    "inspect_all",
    "joined",
    "open_recording",
    "pack_mask",
    "unpack_mask",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_FFMPEG:
        raise AttributeError(f"lookout.codec has no {name!r}")
    return getattr(import_module(f"lookout.codec.{_NEEDS_FFMPEG[name]}"), name)
