"""Random blocks for the tiny checkpoints, and the stock model's answers to compare with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families import family_of
from lookout.models.windows import NEWLINE, VISUAL, EncodedFrame, StrideBlock, WindowPlan
from tests.tiny_models import checkpoint, language_half

HIDDEN = 128
STEP_US = 1_000_000
GRID = {
    "internvl": (4, 4),
    "qwen2_5_vl": (3, 5),
    "qwen2_vl": (3, 5),
    "qwen3_vl": (4, 3),
    "llava_onevision": (3, 3),
    "llava_onevision2": (4, 3),
    "llava_next_video": (4, 4),
    "smolvlm": (4, 4),
}


@functools.cache
def engine(family: str, dtype: torch.dtype = torch.float32) -> TransformersEngine:
    """One engine a family and dtype for the test session, with room enough."""
    return load_engine(checkpoint(family), dtype=dtype, budget_bytes=1 << 30)


@functools.cache
def stock(family: str) -> Any:
    """The whole stock model."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(checkpoint(family)).eval()


def levels(family: str) -> int:
    """Levels of visual features that its record says are added behind the first layers."""
    return family_of(family).deepstack(stock(family).config.vision_config)


def block(
    family: str, stream: str, index: int, *, frames: int = 2, keep: float = 0.5, seed: int = 0
) -> StrideBlock:
    """A block of random tokens; its first frame is a whole anchor, the others keep a random share."""
    draw = np.random.default_rng([seed, index, sum(stream.encode())])
    rows, cols = GRID[family]
    out = []
    for number in range(frames):
        mask = np.ones((rows, cols), bool) if number == 0 else draw.random((rows, cols)) < keep
        kept = int(mask.sum())
        tokens = torch.from_numpy(draw.standard_normal((kept, HIDDEN)).astype(np.float32))
        deep = None
        if levels(family):
            shape = (levels(family), kept, HIDDEN)
            deep = torch.from_numpy(draw.standard_normal(shape).astype(np.float32)) * 0.5
        time = (index * 4 + number) * STEP_US
        out.append(EncodedFrame(time, number == 0, mask, tokens, deep))
    return StrideBlock(stream, index, tuple(out))


def embeddings(
    family: str, plan: WindowPlan, blocks: Sequence[StrideBlock], suffix: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """All embeddings of a window and one suffix, its deepstack features or None, and the visual mask."""
    whole = stock(family)
    ids = torch.tensor([*plan.token_ids.tolist(), *suffix])
    out = language_half(whole).embed_tokens(ids.clamp(min=0))
    out[ids == NEWLINE] = getattr(whole.model, "image_newline", torch.zeros(HIDDEN))
    visual = ids == VISUAL
    frames = [frame for one in blocks for frame in one.frames]
    out[visual] = torch.cat([frame.tokens for frame in frames])
    deep = None
    if levels(family):
        deep = torch.cat([frame.deepstack for frame in frames if frame.deepstack is not None], 1)
    return out, deep, visual


@torch.no_grad()
def stock_attention(
    family: str, plan: WindowPlan, blocks: Sequence[StrideBlock], suffix: Sequence[int]
) -> torch.Tensor:
    """What the last row of a suffix looks at in the stock model's eager attention: [rows of the window], the
    mean over layers and heads."""
    model = language_half(stock(family))
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        out = _stock_forward(family, plan, blocks, suffix, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    weights: torch.Tensor = torch.stack([layer[0, :, -1] for layer in out.attentions]).mean((0, 1))
    return weights[: plan.rows]


@torch.no_grad()
def stock_logits(
    family: str, plan: WindowPlan, blocks: Sequence[StrideBlock], suffix: Sequence[int]
) -> torch.Tensor:
    """The stock language model's logits [vocabulary] behind window and suffix, in one plain forward."""
    out = _stock_forward(family, plan, blocks, suffix)
    return stock(family).lm_head(out.last_hidden_state[0, -1])


def _stock_forward(
    family: str, plan: WindowPlan, blocks: Sequence[StrideBlock], suffix: Sequence[int], **how: Any
) -> Any:
    whole = stock(family)
    embeds, deep, visual = embeddings(family, plan, blocks, suffix)
    tail = np.broadcast_to(
        plan.question_position + np.arange(len(suffix)), (plan.positions.shape[0], len(suffix))
    )
    positions = torch.from_numpy(np.concatenate([plan.positions, tail], 1))
    extra: dict[str, Any] = dict(how)
    if deep is not None:
        extra |= {"visual_pos_masks": visual[None], "deepstack_visual_embeds": list(deep)}
    shaped = positions if positions.shape[0] == 1 else positions[:, None]
    return language_half(whole)(inputs_embeds=embeds[None], position_ids=shaped, **extra)
