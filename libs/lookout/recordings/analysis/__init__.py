"""Questions about a recording, answered much faster than it plays (all of QuickVideo).

A recording is cut into parts of as many frames as the model reads at once. A part is prefilled group by group
while later frames are decoded, and every question is asked at its end, so any number of questions share one
prefill. Parts are independent and plain data, so a job makes the same call with some of the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.recordings.analysis.results import (
    Analysis as Analysis,
    Part as Part,
    PartAnswer as PartAnswer,
    PartResult as PartResult,
    Progress as Progress,
    QuestionAnswer as QuestionAnswer,
)
from lookout.recordings.analysis.settings import (
    AnalysisError as AnalysisError,
    AnalysisSettings as AnalysisSettings,
)

if TYPE_CHECKING:
    from lookout.recordings.analysis.analyzer import Analyzer as Analyzer
    from lookout.recordings.analysis.clips import ClipFile as ClipFile, write_clips as write_clips
    from lookout.recordings.analysis.journal import Journal as Journal
    from lookout.recordings.analysis.recording import analyze as analyze, release as release
    from lookout.recordings.analysis.run import encode_frames as encode_frames

#: names whose modules import torch or FFmpeg, which reading or planning answers does not need
__getattr__ = lazy_names(__name__)
