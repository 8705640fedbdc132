"""Computes how many samples of a recording a model can read at once. This needs the model's configuration but
no weights."""

from __future__ import annotations

from pathlib import Path

from lookout.models.families import tower_grid
from lookout.models.windows import Layout
from lookout.recordings import GroupPlanner
from lookout.recordings.analysis.cutting import trained_frames
from lookout.recordings.analysis.settings import PART_FRAMES, AnalysisError, AnalysisSettings

QUESTION_ROOM = 512
"""Number of positions that are kept free for a question and its answer."""


def part_frames(folder: Path, layout: Layout, settings: AnalysisSettings) -> int:
    """Return the number of samples of a part.

    The setting `part_frames` comes first, then the number for which the model was trained, then as many as
    fit in the model's positions, but at most `PART_FRAMES`.

    Args:
        folder: The model's folder, which needs no weights.
        layout: The model's prompt layout.
        settings: How recordings are sampled.

    Raises:
        AnalysisError: The model has too few positions for one frame.
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
        raise AnalysisError(
            f"{folder}: the model has {rule.limit} positions, too few for one frame: use another model"
        )
    return min(PART_FRAMES, int(room / positions))


def planner(layout: Layout, settings: AnalysisSettings, frames: int = 9999) -> GroupPlanner:
    """Return a planner for parts of at most `frames` frames."""
    return GroupPlanner(layout, settings.prefill, frames, frames / settings.fps)
