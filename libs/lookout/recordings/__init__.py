"""Recordings (QuickVideo): groups of frames, which KV entries stay, decode and prefill overlapped."""

from lookout.recordings.groups import GroupPlanner, grouped
from lookout.recordings.overlap import Mode, Timings, run_groups
from lookout.recordings.types import GroupPlan, PrefillSettings, RecordingError, Score

__all__ = [
    "GroupPlan",
    "GroupPlanner",
    "Mode",
    "PrefillSettings",
    "RecordingError",
    "Score",
    "Timings",
    "grouped",
    "run_groups",
]
