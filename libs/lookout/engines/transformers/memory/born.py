"""Born KV: what the engine computed for a block when the block was newest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lookout.engines.transformers.engine import TransformersEngine
from lookout.engines.transformers.model import LanguageModel
from lookout.engines.types import StreamLostError
from lookout.memory import (
    BornBlock,
    KVShape,
    Prefix,
)
from lookout.windows import PromptPart, StrideBlock, WindowPlan
from lookout.windows.positions import RowLayout


def frame_embeddings(block: StrideBlock) -> torch.Tensor:
    """Mean vision-tower token of each frame, float32 [frames, hidden].

    A group that a frame dropped counts as it was when the block last kept it: its content did not change. A
    block opens with a whole frame, so the result is a function of the block alone.
    """
    hidden = block.frames[0].tokens.shape[1] if block.frames else 0
    groups = block.frames[0].keep.size if block.frames else 0
    latest = torch.zeros(groups, hidden)
    filled = np.zeros(groups, dtype=bool)
    out = torch.zeros(len(block.frames), hidden)
    for number, frame in enumerate(block.frames):
        latest[torch.from_numpy(frame.kept)] = frame.tokens.float().cpu()
        filled[frame.kept] = True
        out[number] = latest[torch.from_numpy(filled)].mean(0) if filled.any() else 0.0
    return out


def born_block(
    engine: TransformersEngine,
    plan: WindowPlan,
    block: StrideBlock,
    *,
    frame_us: int | None = None,
    compact: bool = False,
) -> BornBlock:
    """The KV of a window's newest block, as the engine has just computed it.

    Args:
        engine: ran `plan` last for this stream, with `keep`.
        plan: the window that `block` closed.
        block: the newest block of the plan.
        frame_us: time from frame to frame, for a model that counts time and a block of one
            frame; elsewhere read from the block.
        compact: as in the planner's settings.

    Raises:
        StreamLostError: the engine holds another window of this stream, or none.
    """
    kv = engine.kv(plan.stream)
    if kv.digest != plan.digest or not kv.keys:
        raise StreamLostError(
            f"{plan.stream}: the engine holds window {kv.window}, not window {plan.window}: take a block's "
            "KV right after its window"
        )
    parts = [part for part in plan.parts if part.block == block.index]
    begin, end = (parts[0].start, parts[-1].stop) if parts else (0, 0)
    frame = np.repeat([part.frame for part in parts], [part.stop - part.start for part in parts])
    rule = engine.layout.positions
    places, extent = [], np.ones(rule.axes, np.int64)
    for part in parts:
        shown = block.frames[part.frame]
        inside, stop = rule.place(_alone(part), [shown], compact=compact)
        places.append(inside)
        rows, cols = shown.keep.shape
        extent = np.maximum(extent, rule.shape((rows, cols), stop))
    step = rule.ticks(extent, _frame_us(block, frame_us))
    return BornBlock(
        stream=plan.stream,
        index=block.index,
        times_us=np.array([picture.time_us for picture in block.frames], dtype=np.int64),
        embeddings=frame_embeddings(block),
        frame=frame.astype(np.int64),
        places=np.concatenate(places, 1) if places else np.zeros((rule.axes, 0), np.int64),
        step=step,
        extent=extent,
        keys=torch.stack([part[:, begin:end] for part in kv.keys]).cpu(),
        values=torch.stack([part[:, begin:end] for part in kv.values]).cpu(),
    )


def _alone(part: PromptPart) -> RowLayout:
    """The rows of one frame as a prompt of its own."""
    sizes = (
        part.visual_start - part.start,
        part.visual_stop - part.visual_start,
        part.stop - part.visual_stop,
    )
    return RowLayout(0, *(np.array([size], dtype=np.int64) for size in sizes))


def _frame_us(block: StrideBlock, frame_us: int | None) -> int:
    """Time from frame to frame: of the block where it has two, else as given, else a second."""
    times = [frame.time_us for frame in block.frames]
    if len(times) > 1:
        return int((times[-1] - times[0]) // (len(times) - 1))
    return frame_us or 1_000_000


def prefix_of(engine: TransformersEngine, plan: WindowPlan) -> Prefix:
    """The system prefix of a stream the engine holds."""
    kv, rows = engine.kv(plan.stream), plan.parts[0].stop
    return Prefix(
        positions=plan.positions[:, :rows].copy(),
        keys=torch.stack([part[:, :rows] for part in kv.keys]).cpu(),
        values=torch.stack([part[:, :rows] for part in kv.values]).cpu(),
    )


def shape_of(model: LanguageModel, axes: int) -> KVShape:
    """The KV of one token of a model."""
    return KVShape(len(model.layers), model.kv_heads, model.head_dim, axes, model.dtype)


def key_bias(model: LanguageModel) -> torch.Tensor:
    """The bias of every layer's key projection [layers, width]; zero where there is none."""
    rows = []
    for layer in model.layers:
        attention: Any = layer.self_attn
        bias = getattr(attention.k_proj, "bias", None)
        normed = hasattr(attention, "k_norm")
        width = model.kv_heads * model.head_dim
        rows.append(torch.zeros(width) if bias is None or normed else bias.detach().cpu())
    return torch.stack(rows)
