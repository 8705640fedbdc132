"""Reads whole recordings: their bytes, their frame table, and samples decoded in parallel between keyframes.

Modules that need FFmpeg are imported lazily, when one of their names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.video.files.clipping import RecordingClip as RecordingClip
    from lookout.video.files.parallel import FileDecoder as FileDecoder, FileFrame as FileFrame
    from lookout.video.files.reader import VideoReader as VideoReader
    from lookout.video.files.recording import (
        Gap as Gap,
        RecordingFacts as RecordingFacts,
        RecordingReader as RecordingReader,
        Samples as Samples,
        Sampling as Sampling,
    )
    from lookout.video.files.source import Source as Source, UrlSource as UrlSource

__getattr__ = lazy_names(__name__)
