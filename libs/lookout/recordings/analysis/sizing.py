"""Computes how many samples of a recording a model reads at once, from its configuration only: no weights are
needed."""

from __future__ import annotations

from pathlib import Path

from lookout.models.families import tower_grid
from lookout.models.windows import Layout
from lookout.recordings import GroupPlanner
from lookout.recordings.analysis.cutting import trained_frames
from lookout.recordings.analysis.settings import PART_FRAMES, AnalysisError, AnalysisSettings

QUESTION_ROOM = 512
"""Positions kept free for a question and its answer."""


def part_frames(folder: Path, layout: Layout, settings: AnalysisSettings) -> int:
    """Return the number of samples of a part: the setting, else what the model was trained for, else what
    fits in its positions.

    Args:
        folder: The model's checkpoint; configuration and tokenizer suffice.
        layout: The model's prompt layout.
        settings: How recordings are sampled.

    Raises:
        AnalysisError: The model's positions do not suffice for one frame.
        VisionError: The model's configuration cannot be used.
    """
    if settings.part_frames is not None:
        return settings.part_frames
    trained = trained_frames(folder)
    if trained is not None:
        return trained
    rule, grid = layout.positions, tower_grid(folder)
    room = rule.limit - len(layout.prefix) - QUESTION_ROOM
    rows = planner(layout, settings).rows(1, grid.tokens) - len(layout.prefix)
    positions = rule.per_frame(rows, (grid.group_rows, grid.group_cols), grid.temporal, settings.fps)
    if room < positions:
        raise AnalysisError(f"{folder}: the model has {rule.limit} positions, too few for one frame")
    return min(PART_FRAMES, int(room / positions))


def planner(layout: Layout, settings: AnalysisSettings, frames: int = 9999) -> GroupPlanner:
    """Return a planner for parts of at most this many frames."""
    return GroupPlanner(layout, settings.prefill, frames, frames / settings.fps)
