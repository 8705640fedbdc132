"""One packed pass over the stock decoder layers: the computed rows and the questions of many streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lookout.models.engines.asked import Suffix
from lookout.models.engines.transformers.attention import Pass, StreamPass, additive, chunks_of
from lookout.models.engines.transformers.kv import StreamKV
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.engines.transformers.question_kv import QuestionKV, QuestionRows, seen_rows
from lookout.models.engines.types import WindowRequest
from lookout.models.windows import WindowPlan, rows_in
from lookout.models.windows.types import Rows


@dataclass(slots=True, eq=False)
class PassWork:
    """One admitted request on its way through a pass.

    Attributes:
        name: Name under which its KV is counted in the budget.
        started: Whether a pass has written KV rows for this request.
        past: KV of the questions' rows, kept if text must be written for their answers.
        numbers: The question that each suffix continues; None: 0, 1, 2, ...
        attention: What each question attended to, float32 [questions, window rows], summed over layers and
            heads.
    """

    index: int
    request: WindowRequest
    suffixes: list[Suffix]
    rows: Rows
    kv: StreamKV
    name: str
    started: bool = False
    share: StreamPass | None = field(default=None)
    past: QuestionKV | None = None
    numbers: Sequence[int] | None = None
    attention: torch.Tensor | None = None

    @property
    def plan(self) -> WindowPlan:
        return self.request.plan


def forward(model: LanguageModel, works: Sequence[PassWork]) -> list[torch.Tensor]:
    """Run the packed pass; return, for each request, the normed states [questions, hidden] at the suffixes'
    ends."""
    device = model.device
    indices = _uploaded(works, device)
    shares = [_share(model, work, index) for work, index in zip(works, indices, strict=True)]
    state = Pass(shares)
    state.pack()
    hidden = torch.cat([_inputs(model, index) for index in indices])[None]
    deep = _deepstack(model, works, indices)
    # The identity rotation: K is cached un-rotated, and the attention function rotates it (docs/engines.md).
    ones = torch.ones(1, hidden.shape[1], model.head_dim, dtype=hidden.dtype, device=device)
    zeros = torch.zeros_like(ones)
    for index, layer in enumerate(model.layers):
        hidden, deep = _schedule(model, index, works, state, hidden, deep)
        rows = hidden.shape[1]
        if rows:
            hidden = layer(
                hidden,
                attention_mask=None,
                position_ids=None,
                past_key_values=state,
                use_cache=True,
                position_embeddings=(ones[:, :rows], zeros[:, :rows]),
            )
        if deep is not None and index < deep.shape[0]:
            hidden = hidden + deep[index]
    for work, share in zip(works, shares, strict=True):
        work.attention = share.attention
    for work, own in zip(works, indices, strict=True):
        if work.past is not None:
            work.past.commit(own.asked.owner)
    return [
        model.norm(hidden[0].index_select(0, index.ends + (share.offset + share.computed)))
        for index, share in zip(indices, shares, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Indices:
    """The indices for a stream's part of a pass, int64 on the device.

    Attributes:
        frames: The frames with computed tokens.
        asked: The questions' rows, on the host.
        rows: The window rows to compute, [computed].
        positions: Positions of all window rows, [axes, rows].
        places: Positions of the questions' rows, [axes, question rows].
        ids: Token ids of the computed rows and of the questions, [computed + question rows].
        take: Which of the concatenated tokens of `frames` are computed.
        put: The places of the tokens in `take` among the computed rows.
        ends: The last row of each question, counted from the first row of the first question.
        owners: The question of each row of earlier passes and of this one, [question rows].
    """

    frames: Sequence[Any]
    asked: QuestionRows
    rows: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    ids: torch.Tensor
    take: torch.Tensor
    put: torch.Tensor
    ends: torch.Tensor
    owners: torch.Tensor


def _uploaded(works: Sequence[PassWork], device: torch.device) -> list[_Indices]:
    """Build the indices for all streams of a pass and copy them to the device in one go, because every copy
    from pageable memory makes the host wait for the device."""
    host, named = [], []
    for work in works:
        plan, asked = work.plan, QuestionRows.of(work.suffixes, work.past, work.numbers)
        shown, take, put = _visual_rows(work)
        named.append((shown, asked))
        host += [
            work.rows,
            plan.positions,
            np.broadcast_to(
                plan.question_position + asked.steps, (plan.positions.shape[0], len(asked.steps))
            ),
            np.concatenate([plan.token_ids[work.rows], *map(np.asarray, work.suffixes)]),
            take,
            put,
            asked.ends,
            asked.owners(work.past),
        ]
    flat = np.concatenate([part.ravel() for part in host]).astype(np.int64, copy=False)
    parts = torch.split(torch.from_numpy(flat).to(device), [part.size for part in host])
    views = [part.view(like.shape) for part, like in zip(parts, host, strict=True)]
    step = len(host) // len(works)
    return [_Indices(*names, *views[place * step : (place + 1) * step]) for place, names in enumerate(named)]


def _share(model: LanguageModel, work: PassWork, index: _Indices) -> StreamPass:
    mask = None
    if work.suffixes:
        mask = additive(seen_rows(index.owners, len(index.asked.owner), work.plan.rows), model.dtype)
    work.share = StreamPass(
        kv=work.kv,
        rows=index.rows,
        angles=model.rotary.angles(index.positions, model.dtype),
        chunks=chunks_of(index.rows, work.rows.tolist(), work.plan.rows, model.dtype),
        question_rows=len(index.asked.owner),
        question_angles=model.rotary.angles(index.places, model.dtype),
        question_mask=mask,
        past=work.past,
        ends=index.ends if work.suffixes and work.numbers is None else None,
    )
    return work.share


def _inputs(model: LanguageModel, index: _Indices) -> torch.Tensor:
    """Embeddings [rows, hidden] of a stream's computed rows and its questions."""
    out = model.embed(index.ids)
    if index.frames:
        tokens = torch.cat([frame.tokens for frame in index.frames]).to(model.device, out.dtype)
        out = out.index_copy(0, index.put, tokens.index_select(0, index.take))
    return out


def _deepstack(
    model: LanguageModel, works: Sequence[PassWork], indices: Sequence[_Indices]
) -> torch.Tensor | None:
    """DeepStack features [levels, packed rows, hidden], zero at text rows."""
    if not model.deepstack:
        return None
    parts = []
    for work, index in zip(works, indices, strict=True):
        size = work.share.size if work.share is not None else 0
        part = torch.zeros(
            (model.deepstack, size, model.hidden),
            dtype=model.dtype,
            device=model.device,
        )
        if index.frames:
            levels = torch.cat([f.deepstack for f in index.frames if f.deepstack is not None], 1).to(part)
            part.index_copy_(1, index.put, levels.index_select(1, index.take))
        parts.append(part)
    return torch.cat(parts, 1)


def _schedule(  # noqa: PLR0917
    model: LanguageModel,
    index: int,
    works: Sequence[PassWork],
    state: Pass,
    hidden: torch.Tensor,
    deep: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Drop the rows that are no longer computed at layer `index` and above (VLCache, CacheBlend)."""
    hidden_parts: list[torch.Tensor] = []
    changed = False
    for work, share in zip(works, state.streams, strict=True):
        local = _rows_at(model, index, work, share, hidden)
        if local is not None:
            changed = True
            hidden_parts.append(local + share.offset)
            # Questions stay in every layer: the answer is read from their last row.
            tail = torch.arange(share.question_rows, device=hidden.device)
            hidden_parts.append(tail + share.offset + share.computed)
            share.rows = share.rows.index_select(0, local)
            share.chunks = chunks_of(share.rows, None, share.kv.rows, model.dtype)
        else:
            hidden_parts.append(torch.arange(share.size, device=hidden.device) + share.offset)
    if not changed:
        return hidden, deep
    state.pack()
    rows = torch.cat(hidden_parts)
    return hidden.index_select(1, rows), None if deep is None else deep.index_select(1, rows)


def _rows_at(
    model: LanguageModel, index: int, work: PassWork, share: StreamPass, hidden: torch.Tensor
) -> torch.Tensor | None:
    """Return which of the stream's current rows continue at layer `index`; None: all of them."""
    plan = work.plan
    if index and plan.layers is not None and plan.layers[index] != plan.layers[index - 1]:
        before, now = rows_in(plan.layers[index - 1]), rows_in(plan.layers[index])
        return torch.from_numpy(np.searchsorted(before, now)).to(hidden.device)
    if plan.select is not None and plan.select.layer == index:
        own = hidden[:, share.offset : share.offset + share.computed]
        deviation = _deviation(model, index, share, own)
        old = torch.from_numpy(plan.source[work.rows] >= 0).to(hidden.device)
        fresh = torch.from_numpy(np.flatnonzero(plan.source[work.rows] < 0)).to(hidden.device)
        # New rows are computed in any case, so they must not use up the budget of the old ones.
        deviating = deviation.masked_fill(~old, -1.0).topk(plan.select.rows).indices
        return torch.cat([fresh, deviating]).sort().values
    return None


def _deviation(model: LanguageModel, index: int, share: StreamPass, hidden: torch.Tensor) -> torch.Tensor:
    """Squared deviation [rows] of stored K and V from fresh ones at a layer (CacheBlend, section 4)."""
    layer: Any = model.layers[index]
    attention = layer.self_attn
    inner = layer.input_layernorm(hidden)[0]
    shape = (inner.shape[0], model.kv_heads, model.head_dim)
    key, value = attention.k_proj(inner).view(shape), attention.v_proj(inner).view(shape)
    # Qwen3 normalises keys before it caches them.
    if hasattr(attention, "k_norm"):
        key = attention.k_norm(key)
    old_key = share.kv.keys[index].index_select(1, share.rows).transpose(0, 1)
    old_value = share.kv.values[index].index_select(1, share.rows).transpose(0, 1)
    moved: torch.Tensor = (key - old_key).float() ** 2 + (value - old_value).float() ** 2
    return moved.sum((1, 2))


def _visual_rows(work: PassWork) -> tuple[list[Any], Any, Any]:
    """Return the frames with computed visual rows, which rows of their concatenated tokens are computed
    (`take`), and the places of these rows in the stream's part (`put`)."""
    blocks = {block.index: block for block in work.request.blocks}
    frames, take, put, base = [], [], [], 0
    for part in work.plan.parts[1:]:
        low, high = np.searchsorted(work.rows, (part.visual_start, part.visual_stop))
        if low == high:
            continue
        frames.append(blocks[part.block].frames[part.frame])
        take.append(work.rows[low:high] - part.visual_start + base)
        put.append(np.arange(low, high))
        base += part.visual_stop - part.visual_start
    empty = np.zeros(0, dtype=np.int64)
    return frames, np.concatenate(take) if take else empty, np.concatenate(put) if put else empty
