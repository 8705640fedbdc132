"""Whole recordings: their bytes, their frame table, and samples decoded in parallel between keyframes.

Whatever needs FFmpeg is imported when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookout.files.parallel import FileDecoder, FileFrame
    from lookout.files.reader import VideoReader
    from lookout.files.recording import Gap, RecordingFacts, RecordingReader, Samples, Sampling
    from lookout.files.source import Source, UrlSource

_NEEDS_FFMPEG = {
    "FileDecoder": "parallel",
    "FileFrame": "parallel",
    "Gap": "recording",
    "RecordingFacts": "recording",
    "RecordingReader": "recording",
    "Samples": "recording",
    "Sampling": "recording",
    "Source": "source",
    "UrlSource": "source",
    "VideoReader": "reader",
}

__all__ = [
    "FileDecoder",
    "FileFrame",
    "Gap",
    "RecordingFacts",
    "RecordingReader",
    "Samples",
    "Sampling",
    "Source",
    "UrlSource",
    "VideoReader",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_FFMPEG:
        raise AttributeError(f"lookout.files has no {name!r}")
    return getattr(import_module(f"lookout.files.{_NEEDS_FFMPEG[name]}"), name)
