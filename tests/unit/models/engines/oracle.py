"""The version-expanded oracle: any policy over any number of windows as one dense pass.

Every (token, computation) pair is a row of its own. A row sees, in its window's prompt order, the versions
that were current when it ran, placed at the positions of that window. Nothing is cached, moved or shared;
everything is float64.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lookout.models.windows import NEWLINE, VISUAL, Layout, StrideBlock, WindowPlan, rows_in
from tests.tiny_models import language_half, register_attention
from tests.unit.models.engines.scenes import HIDDEN, levels, stock

NAME = "version_expanded"


@dataclass
class Step:
    """One window of a chain: its plan, blocks and question, and the rows an engine selected by itself."""

    plan: WindowPlan
    blocks: Sequence[StrideBlock]
    suffix: Sequence[int]
    selected: np.ndarray | None = None

    def active(self, layer: int) -> np.ndarray:
        """The rows computed at `layer`."""
        if self.plan.select is not None and layer >= self.plan.select.layer:
            rows = rows_in(self.plan.compute)
            fresh = rows[self.plan.source[rows] < 0]
            assert self.selected is not None
            return np.union1d(fresh, self.selected)
        return rows_in(self.plan.runs(layer))


@dataclass
class Versions:
    """All versions of a chain: their inputs, the window that computed each, and who sees whom, where."""

    inputs: torch.Tensor
    deepstack: torch.Tensor
    born: np.ndarray
    seen: list[np.ndarray]
    places: np.ndarray
    current: list[list[np.ndarray]]
    ends: list[int]
    inv_freq: torch.Tensor
    axis: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


@functools.cache
def double(family: str) -> Any:
    """The stock model in float64 with the oracle's attention."""
    whole = copy.deepcopy(stock(family)).double()
    register_attention(NAME, attend)
    language_half(whole).config._attn_implementation = NAME
    return whole


def axes_of(layout: Layout, config: Any) -> torch.Tensor:
    """Which position axis turns each frequency, as `notes` of the two M-RoPE papers have it."""
    half = (
        config.head_dim // 2
        if getattr(config, "head_dim", None)
        else HIDDEN // config.num_attention_heads // 2
    )
    sections = config.rope_parameters.get("mrope_section")
    out = []
    for i in range(half):
        if layout.positions.axes == 1:
            out.append(0)
        elif not config.rope_parameters.get("mrope_interleaved", False):
            out.append(0 if i < sections[0] else 1 if i < sections[0] + sections[1] else 2)
        else:
            turn = i % 3
            out.append(turn if turn and i < 3 * sections[turn] else 0)
    return torch.tensor(out)


def expand(family: str, layout: Layout, steps: Sequence[Step]) -> Versions:
    """Number the versions of a chain and note what each sees."""
    whole = double(family)
    text = language_half(whole)
    layers = len(text.layers)
    inputs, deep, born, owners = [], [], [], []
    current: list[list[np.ndarray]] = []
    for number, step in enumerate(steps):
        plan = step.plan
        embedded, levels = _inputs(family, step)
        rows = rows_in(plan.compute)
        first = len(born)
        version = np.full(plan.rows, -1)
        version[rows] = first + np.arange(len(rows))
        tail = np.arange(len(step.suffix)) + first + len(rows)
        inputs.append(torch.cat([embedded[rows], embedded[plan.rows :]]))
        deep.append(torch.cat([levels[:, rows], levels[:, plan.rows :]], 1))
        born += [number] * (len(rows) + len(tail))
        owners.append((rows, first, tail))
        now = []
        for layer in range(layers):
            held = np.full(plan.rows, -1)
            old = plan.source >= 0
            if old.any():
                held[old] = current[number - 1][layer][plan.source[old]]
            active = step.active(layer)
            held[active] = version[active]
            assert (held >= 0).all()
            now.append(held)
        current.append(now)
    total = len(born)
    seen = [np.zeros((total, total), bool) for _ in range(layers)]
    places = np.zeros((len(steps), layout.positions.axes, total), np.int64)
    for number, step in enumerate(steps):
        rows, first, tail = owners[number]
        for layer in range(layers):
            held = current[number][layer]
            places[number][:, held] = step.plan.positions
            active = set(step.active(layer).tolist())
            for place, row in enumerate(rows):
                if row in active:
                    seen[layer][first + place, held[: row + 1]] = True
            for place, own in enumerate(tail):
                seen[layer][own, held] = True
                seen[layer][own, tail[: place + 1]] = True
        places[number][:, tail] = step.plan.question_position + np.arange(len(tail))
        places[number][:, first : first + len(rows)] = step.plan.positions[:, rows]
    return Versions(
        inputs=torch.cat(inputs),
        deepstack=torch.cat(deep, 1),
        born=np.asarray(born),
        seen=seen,
        places=places,
        current=current,
        ends=[int(tail[-1]) for _, _, tail in owners],
        inv_freq=text.rotary_emb.inv_freq.double(),
        axis=axes_of(layout, text.config),
    )


def _inputs(family: str, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    whole = double(family)
    ids = torch.tensor([*step.plan.token_ids.tolist(), *step.suffix])
    out = language_half(whole).embed_tokens(ids.clamp(min=0)).detach().clone()
    empty = torch.zeros(HIDDEN, dtype=torch.float64)
    out[ids == NEWLINE] = getattr(whole.model, "image_newline", empty).detach()
    visual = ids == VISUAL
    frames = [frame for one in step.blocks for frame in one.frames]
    out[visual] = torch.cat([frame.tokens for frame in frames]).double()
    deep = torch.zeros(levels(family), len(ids), HIDDEN, dtype=torch.float64)
    if len(deep):
        deep[:, visual] = torch.cat([f.deepstack for f in frames if f.deepstack is not None], 1).double()
    return out, deep


def turn(x: torch.Tensor, places: np.ndarray, versions: Versions) -> torch.Tensor:
    """Rotate x [heads, rows, d] at positions [axes, rows], as complex numbers."""
    angle = torch.from_numpy(places)[versions.axis].double().T * versions.inv_freq
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **extra: Any
) -> tuple[torch.Tensor, None]:
    """Attention over versions: each window's rows see the keys placed at that window's positions."""
    versions: Versions = extra["versions"]
    query, key, value = query[0], key[0], value[0]
    versions.keys.append(key)
    versions.values.append(value)
    groups = query.shape[0] // key.shape[0]
    out = torch.zeros(query.shape[1], query.shape[0], query.shape[2], dtype=query.dtype)
    seen = torch.from_numpy(versions.seen[module.layer_idx])
    for number in range(len(versions.places)):
        own = torch.from_numpy(np.flatnonzero(versions.born == number))
        if not len(own):
            continue
        placed = turn(key, versions.places[number], versions).repeat_interleave(groups, 0)
        asked = turn(query[:, own], versions.places[number][:, own], versions)
        score = asked @ placed.transpose(1, 2) * module.scaling
        weight = score.masked_fill(~seen[own], float("-inf")).softmax(-1).nan_to_num(0.0)
        out[own] = (weight @ value.repeat_interleave(groups, 0)).transpose(0, 1)
    return out[None], None


@torch.no_grad()
def logits(family: str, layout: Layout, steps: Sequence[Step]) -> tuple[list[torch.Tensor], Versions]:
    """Per window the logits [vocabulary] at the end of its question; and the versions with their K and V."""
    whole = double(family)
    text = language_half(whole)
    versions = expand(family, layout, steps)
    hidden = versions.inputs[None]
    size = versions.inv_freq.shape[0] * 2
    one = torch.ones(1, hidden.shape[1], size, dtype=torch.float64)
    for index, layer in enumerate(text.layers):
        hidden = layer(
            hidden, attention_mask=None, position_embeddings=(one, torch.zeros_like(one)), versions=versions
        )
        if index < versions.deepstack.shape[0]:
            hidden = hidden + versions.deepstack[index]
    last = text.norm(hidden[0, versions.ends])
    return list(whole.lm_head(last)), versions
