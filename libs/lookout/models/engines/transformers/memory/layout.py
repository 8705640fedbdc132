"""The positions of everything that an answer attends to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookout.models.windows.positions import PositionRule
from lookout.past.memory import FrameChoice, Readable, Slots
from lookout.past.memory.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class AskLayout:
    """The order of everything in an answer: prefix, `slots` for memory, window frames, then the question.

    `window_rows` are the window's rows that are read; `window_frames` int64 [n] and `window_positions` int64
    [axes, n] are their frames and positions. `question` is the position of the question's first row.
    """

    slots: Slots
    prefix_positions: Ints
    window_rows: Ints
    window_frames: Ints
    window_positions: Ints
    question: int


def slot_step(snapshot: Readable, rule: PositionRule) -> Ints:
    """Return the distance from slot to slot, int64 [axes].

    It follows the usual time between frames, so that a missing frame, or a newest block with a single frame,
    does not move anything.
    """
    gaps = np.diff(snapshot.times_us)
    gaps = np.sort(gaps[gaps > 0])
    if not len(gaps):
        return snapshot.step
    return rule.ticks(snapshot.extent, int(gaps[(len(gaps) - 1) // 2]))


def ask_layout(snapshot: Readable, span: int, allowed: FrameChoice, rule: PositionRule) -> AskLayout:
    """Lay out an answer. If nothing is clustered, the memory takes no positions."""
    step = slot_step(snapshot, rule)
    width = span if snapshot.clustered else 0
    start = snapshot.prefix.positions.shape[1]
    axes = len(step)
    origin = np.full(axes, start, dtype=np.int64)
    entries = snapshot.window
    none = np.zeros(0, np.int64)
    frames = np.concatenate([none, *(entry.block.frame + entry.first_frame for entry in entries)])
    places = np.concatenate([np.zeros((axes, 0), np.int64), *(entry.block.places for entry in entries)], 1)
    # The window's blocks are consecutive in the memory unless a block between them was erased.
    own = [np.arange(entry.block.frames) + entry.first_frame for entry in entries]
    distinct = np.unique(np.concatenate([none, *own]))
    slot = np.searchsorted(distinct, frames) + width
    positions = (origin + slot[:, None] * step).T + places
    rows = np.flatnonzero(allowed.holds(frames))
    last = origin + (width + len(distinct) - 1) * step + snapshot.extent
    return AskLayout(
        slots=Slots(origin, step, width),
        prefix_positions=snapshot.prefix.positions,
        window_rows=rows,
        window_frames=frames[rows],
        window_positions=positions[:, rows],
        question=int(last.max()),
    )
