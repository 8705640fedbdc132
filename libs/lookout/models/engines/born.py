"""Reads a block's KV from an engine as it was computed when the block was the newest (born KV)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from lookout.models.windows import Layout, PromptPart, StrideBlock, WindowPlan
from lookout.models.windows.positions import RowLayout
from lookout.past.memory import (
    BornBlock,
    KVShape,
    Prefix,
)


@runtime_checkable
class KeepsRows(Protocol):
    """An engine whose KV can be stored in a memory."""

    @property
    def layout(self) -> Layout: ...

    @property
    def kv_shape(self) -> KVShape:
        """The shape of one token's KV."""
        ...

    @property
    def key_bias(self) -> torch.Tensor:
        """The bias of every layer's key projection, [layers, width]; zeros if the model has no such bias or
        normalises its keys."""
        ...

    def rows(self, plan: WindowPlan, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K (un-rotated) and V of the plan's rows [begin, end), each [layers, kv_heads, end - begin,
        head_dim], in host memory. The plan must be the last one that was run for its stream.

        Raises:
            StreamLostError: The engine has the KV of another window of this stream, or none.
        """
        ...


def frame_embeddings(block: StrideBlock) -> torch.Tensor:
    """Return the mean vision token of each frame, float32 [frames, hidden].

    If pruning dropped a group from a frame, the mean includes the group's newest earlier token in the block,
    because the group has not changed since. A block begins with a whole frame, so the result depends only on
    the block.
    """
    hidden = block.frames[0].tokens.shape[1] if block.frames else 0
    groups = block.frames[0].keep.size if block.frames else 0
    latest = torch.zeros(groups, hidden)
    filled = np.zeros(groups, dtype=bool)
    means = torch.zeros(len(block.frames), hidden)
    for number, frame in enumerate(block.frames):
        latest[torch.from_numpy(frame.kept)] = frame.tokens.float().cpu()
        filled[frame.kept] = True
        means[number] = latest[torch.from_numpy(filled)].mean(0) if filled.any() else 0.0
    return means


def born_block(
    engine: KeepsRows,
    plan: WindowPlan,
    block: StrideBlock,
    *,
    frame_us: int | None = None,
    compact: bool = False,
) -> BornBlock:
    """Return the KV of a window's newest block, as the engine has just computed it.

    Args:
        engine: The engine.
        plan: The plan of the window that ends with `block`. It must be the last plan that the engine ran for
            this stream, with `keep=True`.
        block: The newest block of the plan.
        frame_us: Microseconds between frames, used only if the block has fewer than two frames; None: one
            second. Otherwise the block's own times are used.
        compact: See `WindowSettings.compact`.

    Raises:
        StreamLostError: The engine has the KV of another window of this stream, or none.
    """
    parts = [part for part in plan.parts if part.block == block.index]
    begin, end = (parts[0].start, parts[-1].stop) if parts else (0, 0)
    frame = np.repeat([part.frame for part in parts], [part.stop - part.start for part in parts])
    rule = engine.layout.positions
    places, extent = [], np.ones(rule.axes, np.int64)
    for part in parts:
        shown = block.frames[part.frame]
        inside, stop = rule.place(_frame_layout(part), [shown], compact=compact)
        places.append(inside)
        rows, cols = shown.keep.shape
        extent = np.maximum(extent, rule.shape((rows, cols), stop))
    keys, values = engine.rows(plan, begin, end)
    step = rule.ticks(extent, _frame_us(block, frame_us))
    return BornBlock(
        stream=plan.stream,
        index=block.index,
        times_us=np.array([frame.time_us for frame in block.frames], dtype=np.int64),
        embeddings=frame_embeddings(block),
        frame=frame.astype(np.int64),
        places=np.concatenate(places, 1) if places else np.zeros((rule.axes, 0), np.int64),
        step=step,
        extent=extent,
        keys=keys,
        values=values,
    )


def _frame_layout(part: PromptPart) -> RowLayout:
    """Return the row layout of one frame as a prompt of its own, without a prefix."""
    sizes = (
        part.visual_start - part.start,
        part.visual_stop - part.visual_start,
        part.stop - part.visual_stop,
    )
    return RowLayout(0, *(np.array([size], dtype=np.int64) for size in sizes))


def _frame_us(block: StrideBlock, frame_us: int | None) -> int:
    """Return the microseconds between two frames: from the block if it has at least two frames, else
    `frame_us`, else one second."""
    times = [frame.time_us for frame in block.frames]
    if len(times) > 1:
        return int((times[-1] - times[0]) // (len(times) - 1))
    return frame_us or 1_000_000


def prefix_of(engine: KeepsRows, plan: WindowPlan) -> Prefix:
    """Return the positions and the KV of the plan's prefix, which the engine has."""
    rows = plan.parts[0].stop
    keys, values = engine.rows(plan, 0, rows)
    return Prefix(positions=plan.positions[:, :rows].copy(), keys=keys, values=values)
