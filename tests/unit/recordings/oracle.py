"""Group prefill as one dense pass in float64: who sees whom is a mask per layer and head, made of the
entries that stayed. Nothing is cached, grouped or shared."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lookout.models.windows import NEWLINE, VISUAL, EncodedFrame, Layout
from lookout.recordings import GroupPlan
from tests.tiny_models import language_half, register_attention
from tests.unit.models.engines.oracle import axes_of
from tests.unit.models.engines.scenes import GRID, HIDDEN, levels, stock

NAME = "kept_entries"
STEP_US = 500_000


def frames(family: str, count: int, *, keep: float = 0.7, seed: int = 0) -> list[EncodedFrame]:
    """Random encoded frames; the first is whole, some later ones are empty."""
    draw = np.random.default_rng([seed, count])
    out = []
    for number in range(count):
        mask = np.ones(GRID[family], bool) if number == 0 else draw.random(GRID[family]) < keep
        if number and draw.random() < 0.1:
            mask[:] = False
        kept = int(mask.sum())
        tokens = torch.from_numpy(draw.standard_normal((kept, HIDDEN)).astype(np.float32))
        deep = None
        if levels(family):
            shape = (levels(family), kept, HIDDEN)
            deep = torch.from_numpy(draw.standard_normal(shape).astype(np.float32)) * 0.5
        out.append(EncodedFrame(number * STEP_US, number == 0, mask, tokens, deep))
    return out


@functools.cache
def double(family: str) -> Any:
    """The stock model in float64 with this oracle's attention."""
    whole = copy.deepcopy(stock(family)).double()
    register_attention(NAME, attend)
    language_half(whole).config._attn_implementation = NAME
    return whole


def prompt(
    family: str, plans: Sequence[GroupPlan], shown: Sequence[EncodedFrame], suffix: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings [rows, hidden], DeepStack features [levels, rows, hidden] and positions [axes, rows] of all
    groups and one question."""
    whole = double(family)
    ids = torch.tensor([*np.concatenate([plan.token_ids for plan in plans]), *suffix])
    out = language_half(whole).embed_tokens(ids.clamp(min=0)).detach().clone()
    empty = torch.zeros(HIDDEN, dtype=torch.float64)
    out[ids == NEWLINE] = getattr(whole.model, "image_newline", empty).detach()
    visual = ids == VISUAL
    held = [frame for frame in shown if len(frame.kept)]
    out[visual] = torch.cat([frame.tokens for frame in held]).double()
    deep = torch.zeros(levels(family), len(ids), HIDDEN, dtype=torch.float64)
    if len(deep):
        deep[:, visual] = torch.cat([f.deepstack for f in held if f.deepstack is not None], 1).double()
    axes = plans[0].positions.shape[0]
    tail = np.broadcast_to(plans[-1].question_position + np.arange(len(suffix)), (axes, len(suffix)))
    positions = np.concatenate([*(plan.positions for plan in plans), tail], 1)
    return out, deep, torch.from_numpy(positions)


def visible(plans: Sequence[GroupPlan], kept: Sequence[np.ndarray], question: int) -> list[np.ndarray]:
    """Per layer bool [kv_heads, rows, rows]: who sees whom, from the entries kept [kv_heads, n] per layer."""
    rows = sum(plan.rows for plan in plans) + question
    out = []
    for entries in kept:
        seen = np.zeros((len(entries), rows, rows), bool)
        for head, own in enumerate(entries):
            for plan in plans:
                mine = slice(plan.before, plan.before + plan.rows)
                seen[head, mine, own[own < plan.before]] = True
                seen[head, mine, mine] = np.tri(plan.rows, dtype=bool)
            tail = slice(rows - question, rows)
            seen[head, tail, own] = True
            seen[head, tail, tail] = np.tri(question, dtype=bool)
        out.append(seen)
    return out


def attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **extra: Any
) -> tuple[torch.Tensor, None]:
    """Plain attention under this layer's mask; notes the keys and values."""
    state = extra["kept_state"]
    query, key, value = query[0], key[0], value[0]
    state["keys"].append(key)
    state["values"].append(value)
    state["queries"].append(query)
    groups = query.shape[0] // key.shape[0]
    seen = torch.from_numpy(state["seen"][module.layer_idx]).repeat_interleave(groups, 0)
    wide = turn(key, state).repeat_interleave(groups, 0)
    score = turn(query, state) @ wide.transpose(1, 2) * module.scaling
    weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
    state["weights"].append(weight)
    return (weight @ value.repeat_interleave(groups, 0)).transpose(0, 1)[None], None


def turn(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    """Rotate x [heads, rows, d] at the state's positions, as complex numbers."""
    angle = state["positions"][state["axis"]].double().T * state["inv_freq"]
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


@torch.no_grad()
def logits(  # noqa: PLR0917
    family: str,
    layout: Layout,
    plans: Sequence[GroupPlan],
    shown: Sequence[EncodedFrame],
    suffix: Sequence[int],
    kept: Sequence[np.ndarray],
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The logits [vocabulary] at the question's end, and what every layer computed."""
    whole = double(family)
    text = language_half(whole)
    hidden, deep, positions = prompt(family, plans, shown, suffix)
    state: dict[str, Any] = {
        "keys": [], "values": [], "queries": [], "weights": [],
        "seen": visible(plans, kept, len(suffix)),
        "positions": positions,
        "axis": axes_of(layout, text.config),
        "inv_freq": text.rotary_emb.inv_freq.double(),
    }  # fmt: skip
    size = state["inv_freq"].shape[0] * 2
    one = torch.ones(1, hidden.shape[0], size, dtype=torch.float64)
    hidden = hidden[None]
    for index, layer in enumerate(text.layers):
        hidden = layer(
            hidden,
            attention_mask=None,
            position_embeddings=(one, torch.zeros_like(one)),
            kept_state=state,
        )
        if index < deep.shape[0]:
            hidden = hidden + deep[index]
    return whole.lm_head(text.norm(hidden[0, -1])), state
