"""Where everything of an answer stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookout.memory import FrameChoice, Readable, Slots
from lookout.memory.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class AskLayout:
    """Where everything of an answer stands: prefix, `slots` for memory, window frames, then the question.

    `window_frames` int64 and `window_positions` int64 [axes, n] are those of the window rows that are read
    (`window_rows` among all of them); `question` is the position of the question's first row.
    """

    slots: Slots
    prefix_positions: Ints
    window_rows: Ints
    window_frames: Ints
    window_positions: Ints
    question: int


def ask_layout(snapshot: Readable, span: int, allowed: FrameChoice) -> AskLayout:
    """Lay out an answer. Without anything clustered the memory takes no positions."""
    width = span if snapshot.clustered else 0
    start = snapshot.prefix.positions.shape[1]
    axes = len(snapshot.step)
    origin = np.full(axes, start, dtype=np.int64)
    entries = snapshot.window
    none = np.zeros(0, np.int64)
    frames = np.concatenate([none, *(entry.block.frame + entry.first_frame for entry in entries)])
    places = np.concatenate([np.zeros((axes, 0), np.int64), *(entry.block.places for entry in entries)], 1)
    # Open blocks follow each other in the memory unless one between was erased.
    own = [np.arange(entry.block.frames) + entry.first_frame for entry in entries]
    distinct = np.unique(np.concatenate([none, *own]))
    slot = np.searchsorted(distinct, frames) + width
    positions = (origin + slot[:, None] * snapshot.step).T + places
    rows = np.flatnonzero(allowed.holds(frames))
    last = origin + (width + len(distinct) - 1) * snapshot.step + snapshot.extent
    return AskLayout(
        slots=Slots(origin, snapshot.step, width),
        prefix_positions=snapshot.prefix.positions,
        window_rows=rows,
        window_frames=frames[rows],
        window_positions=positions[:, rows],
        question=int(last.max()),
    )
