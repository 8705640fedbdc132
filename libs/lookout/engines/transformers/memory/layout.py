"""Where everything of an answer stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookout.memory import (
    Slots,
    Snapshot,
    Span,
)
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


def ask_layout(snapshot: Snapshot, span: int, allowed: Span) -> AskLayout:
    """Lay out an answer. Without anything clustered the memory takes no positions."""
    recalled = any(int(index.counts.sum()) for index in snapshot.layers)
    width = span if recalled else 0
    start = snapshot.prefix.positions.shape[1]
    origin = np.full(len(snapshot.step), start, dtype=np.int64)
    blocks = snapshot.window
    frames = np.concatenate([entry.block.frame + entry.first_frame for entry in blocks])
    places = np.concatenate([entry.block.places for entry in blocks], 1)
    first = blocks[0].first_frame
    number = blocks[-1].first_frame + blocks[-1].block.frames - first
    # Open blocks follow each other in the memory unless one between was erased.
    distinct = np.unique(np.concatenate([np.arange(b.block.frames) + b.first_frame for b in blocks]))
    slot = np.searchsorted(distinct, frames) + width
    number = len(distinct)
    positions = (origin + slot[:, None] * snapshot.step).T + places
    rows = np.flatnonzero(allowed.holds(frames))
    last = origin + (width + number - 1) * snapshot.step + snapshot.extent
    return AskLayout(
        slots=Slots(origin, snapshot.step, width),
        prefix_positions=snapshot.prefix.positions,
        window_rows=rows,
        window_frames=frames[rows],
        window_positions=positions[:, rows],
        question=int(last.max()),
    )
