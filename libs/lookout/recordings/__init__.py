"""Recordings (QuickVideo): groups of frames, which KV entries stay, decode and prefill overlapped."""

from lookout.recordings.groups import GroupPlanner, grouped
from lookout.recordings.types import GroupPlan, PrefillSettings, RecordingError, Score

__all__ = ["GroupPlan", "GroupPlanner", "PrefillSettings", "RecordingError", "Score", "grouped"]
