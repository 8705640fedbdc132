"""Answers questions about a recording much faster than the recording plays (QuickVideo).

A recording is cut into parts, each as long as the model can read at once. A part is prefilled group by group
while later frames are decoded. All questions are asked at the part's end, so they share one prefill. Parts
are independent plain data, so a fleet's job makes the same call with some of the parts.
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

#: loaded on first use, because their modules import torch or FFmpeg, which reading answers does not need
__getattr__ = lazy_names(__name__)
