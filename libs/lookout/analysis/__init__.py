"""Questions about a recording, answered much faster than it plays (QuickVideo as a whole).

A recording is cut into parts of as many frames as the model reads at once. A part is prefilled group by group
while later frames are decoded, and every question is asked at its end: any number of questions cost one
prefill. Parts are independent and plain data, so a job is the same call with some of them.
"""

from lookout.analysis.analyzer import Analyzer
from lookout.analysis.journal import Journal
from lookout.analysis.recording import analyze, release
from lookout.analysis.results import Analysis, Part, PartAnswer, PartResult, Progress, QuestionAnswer
from lookout.analysis.run import encode_frames
from lookout.analysis.settings import AnalysisError, AnalysisSettings

__all__ = [
    "Analysis",
    "AnalysisError",
    "AnalysisSettings",
    "Analyzer",
    "Journal",
    "Part",
    "PartAnswer",
    "PartResult",
    "Progress",
    "QuestionAnswer",
    "analyze",
    "encode_frames",
    "release",
]
