"""Whole recordings: their bytes, their frame table, and samples decoded in parallel between keyframes.

Whatever needs FFmpeg is imported when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

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


__getattr__ = lazy_names(__name__, _NEEDS_FFMPEG)
