"""Runs a question through the layers and reads the memory inside attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lookout.models.engines.transformers.attention import LayerCache, attend_through, few_rows
from lookout.models.engines.transformers.memory.clock import clock
from lookout.models.engines.transformers.memory.layout import AskLayout
from lookout.models.engines.transformers.memory.reading import (
    LayerTrace,
    Observer,
    Reader,
)
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.windows.rotary import Angles, Rotary
from lookout.past.memory import (
    HistoryError,
    Predictor,
    Readable,
)
from lookout.past.memory.types import Ints

POSITIONS = 4096
"""Angles are computed for multiples of this number of positions."""


@functools.lru_cache(maxsize=8)
def _angles_below(rotary: Rotary, count: int, dtype: torch.dtype) -> Angles:
    """Cosine and sine [count, head_dim / 2] of every frequency at the positions below `count`."""
    places = torch.arange(count, device=rotary.inv_freq.device)
    return rotary.angles(places[None], dtype)


class AngleTable:
    """Rotation angles of the positions below `count`, computed once for all questions and then looked up."""

    def __init__(self, model: LanguageModel, count: int) -> None:
        self._axis = model.rotary.axis
        room = -(-count // POSITIONS) * POSITIONS
        self._cos, self._sin = _angles_below(model.rotary, room, model.dtype)

    def of(self, positions: Ints) -> Angles:
        """Look up the angles [n, head_dim / 2] of positions int64 [axes, n]; they equal `angles_of`."""
        rows = torch.from_numpy(np.ascontiguousarray(positions)).to(self._cos.device)
        if len(rows) == 1:
            return self._cos.index_select(0, rows[0]), self._sin.index_select(0, rows[0])
        own = rows[self._axis].T
        return self._cos.gather(0, own), self._sin.gather(0, own)


@dataclass(slots=True, eq=False)
class _LayerState:
    """What a layer keeps for later rows.

    `keys` and `values` are K and V at their positions [kv_heads, room, d]; `size` rows of them are filled.
    `frames` is the frame of each row before the question; the prefix and representatives count as one extra
    frame at the end. `last` is the question's last row, rotated and scaled [heads, 1, d], with its mask
    [1, keys].
    """

    keys: torch.Tensor
    values: torch.Tensor
    frames: Ints
    size: int = 0
    last: tuple[torch.Tensor, torch.Tensor] | None = None

    def append(self, keys: torch.Tensor, values: torch.Tensor, angles: Angles) -> None:
        """Append rows given un-rotated; keys are rotated to their positions."""
        rows = slice(self.size, self.size + keys.shape[1])
        Rotary.rotate(keys, angles, out=self.keys[:, rows])
        self.values[:, rows] = values
        self.size = rows.stop


@dataclass(slots=True, eq=False)
class AskPass(LayerCache):
    """One question over prefix, memory and window.

    `room` is the maximum number of rows of the question and its answer.
    """

    model: LanguageModel
    snapshot: Readable
    layout: AskLayout
    reader: Reader
    traces: Sequence[LayerTrace]
    room: int
    predictor: Predictor = Predictor.NONE
    observer: Observer | None = None
    angles: Angles | None = None
    answering: bool = False
    states: list[_LayerState | None] = field(init=False)
    table: AngleTable = field(init=False)
    fixed: Angles = field(init=False)
    fixed_frames: Ints = field(init=False)
    _mask: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        layout, model = self.layout, self.model
        self.states = [None] * len(model.layers)
        self.table = AngleTable(model, layout.question + 1)
        self.fixed = self.table.of(np.concatenate([layout.prefix_positions, layout.window_positions], 1))
        prefix = np.full(layout.prefix_positions.shape[1], len(self.snapshot.times_us), np.int64)
        self.fixed_frames = np.concatenate([prefix, layout.window_frames])

    def attend(
        self, layer: int, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """See `LayerCache.attend`."""
        assert self.angles is not None
        first = self.states[layer] is None
        state = self.place(layer, query)
        begun = clock()
        rows = query.shape[1]
        # Later rows of the same answer see these rows.
        state.append(key, value[0], self.angles)
        keys, values = state.keys[:, : state.size], state.values[:, : state.size]
        bias = self.mask(state, rows)
        turned = Rotary.rotate(query, self.angles)
        if first:
            state.last = turned[:, -1:] * scaling, bias[-1:]
        if first and self.observer is not None:
            self.observer(layer, turned, keys, bias, scaling)
        if self.answering:
            turned, bias = turned[:, -1:], bias[-1:]
        out = few_rows(turned, keys, values, bias, scaling)
        if len(out) < rows:
            out = torch.cat([out.new_zeros(rows - len(out), *out.shape[1:]), out])
        self.traces[layer].attend_s += clock() - begun
        return out

    def place(self, layer: int, query: torch.Tensor) -> _LayerState:
        """Return a layer's keys and values, laid out once per question: the prefix, the window and what is
        read from the memory for this query. Keys are rotated to their positions."""
        state = self.states[layer]
        if state is not None:
            return state
        mean = mean_query(query, self.model.kv_heads)
        memory = self.reader.read(layer, mean)
        before, frames = len(self.fixed_frames), self.fixed_frames
        rows = before + (0 if memory is None else len(memory.frames))
        if memory is not None:
            nobody = np.full(rows - before - memory.tokens, len(self.snapshot.times_us), np.int64)
            frames = np.concatenate([frames, memory.frames[: memory.tokens], nobody])
        size = (self.model.kv_heads, rows + self.room, self.model.head_dim)
        keys, values = (torch.empty(size, dtype=query.dtype, device=query.device) for _ in range(2))
        state = _LayerState(keys, values, frames)
        state.append(*self._fixed(layer), self.fixed)
        if memory is not None:
            positions = self.layout.slots.positions(memory.frames, memory.places)
            cos, sin = self.table.of(positions)
            for part in memory.parts:
                span = slice(state.size - before, state.size - before + part[0].shape[1])
                state.append(*part, (cos[span], sin[span]))
        self.states[layer] = state
        return state

    def _fixed(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K (un-rotated) and V of a layer's prefix and window, [kv_heads, rows, d]."""
        prefix, blocks = self.snapshot.prefix, [entry.block for entry in self.snapshot.window]
        rows = self.layout.window_rows
        subset = None if len(rows) == sum(block.rows for block in blocks) else torch.from_numpy(rows)
        out = []
        for before, window in (
            (prefix.keys[layer], [block.keys[layer] for block in blocks]),
            (prefix.values[layer], [block.values[layer] for block in blocks]),
        ):
            recent = window if subset is None else [torch.cat(window, 1).index_select(1, subset)]
            out.append(torch.cat([before, *recent], 1).to(self.model.device))
        return out[0], out[1]

    def mask(self, state: _LayerState, rows: int) -> torch.Tensor:
        """Return the additive mask [rows, keys] of a layer's last rows. It is zero for all keys before the
        question, so one mask serves all layers."""
        mask = self._mask
        if mask is None or mask.shape[0] != rows or mask.shape[1] < state.size:
            room = state.size + state.size // 8
            mask = self._mask = causal_bias(room, rows, state.keys.dtype, state.keys.device)
        return mask[:, mask.shape[1] - state.size :]

    def weight_of_frames(self) -> torch.Tensor:
        """Return the attention of the question's last row to each frame, summed over layers: [frames + 1].
        The last entry is for rows without a frame: prefix and representatives."""
        out = torch.zeros(len(self.snapshot.times_us) + 1, device=self.model.device)
        for state in self.states:
            if state is None or state.last is None:
                continue
            query, bias = state.last
            keys = state.keys[:, : bias.shape[1]]
            heads, groups = query.shape[0], query.shape[0] // keys.shape[0]
            score = torch.matmul(query.view(keys.shape[0], groups, -1), keys.transpose(1, 2))
            weight = (score + bias).float().softmax(-1).sum((0, 1))[: len(state.frames)] / heads
            out.index_add_(0, torch.from_numpy(state.frames).to(out.device), weight)
        return out


def causal_bias(keys: int, rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Build an additive mask [rows, keys].

    The last `rows` keys belong to the rows themselves, and every row sees those up to itself. Every row sees
    all keys before them.
    """
    out = torch.zeros(rows, keys, dtype=dtype, device=device)
    out[:, keys - rows :] = torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu(1)
    return out


def mean_query(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Average queries [heads, rows, d] over rows and over the query heads of each KV head, giving [kv_heads *
    d]."""
    heads, rows, size = query.shape
    return query.view(kv_heads, heads // kv_heads, rows, size).mean((1, 2)).reshape(-1)


def angles_of(model: LanguageModel, positions: Ints) -> Angles:
    """Compute a model's rotation angles for positions int64 [axes, n]."""
    return model.rotary.angles(
        torch.from_numpy(np.ascontiguousarray(positions)).to(model.device), model.dtype
    )


def foreseen_query(model: LanguageModel, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    """Predict a layer's mean query from a hidden state [1, rows, hidden] of the layer before it."""
    following: Any = model.layers[layer]
    attention = following.self_attn
    rows = hidden.shape[1]
    query = attention.q_proj(following.input_layernorm(hidden)).view(rows, model.heads, model.head_dim)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
    return mean_query(query.transpose(0, 1), model.kv_heads)


@dataclass(slots=True, eq=False)
class ManyPass(LayerCache):
    """One question over several pasts: `rows` rows for each past, one past after the other.

    The layers' products are computed for all pasts together; each past is read on a thread of `pool`. `lost`
    has the error of each past that could not be read, by the past's number; the rows of a lost past are
    meaningless from then on.
    """

    passes: Sequence[AskPass]
    rows: int
    pool: Executor
    lost: dict[int, HistoryError] = field(default_factory=dict)

    def attend(
        self, layer: int, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """See `LayerCache.attend`."""

        def own_rows(number: int) -> torch.Tensor:
            part = slice(number * self.rows, (number + 1) * self.rows)
            if number not in self.lost:
                try:
                    with torch.inference_mode():  # must be set in each thread
                        own = self.passes[number]
                        return own.attend(layer, key[:, part], query[:, part], value[:, :, part], scaling)
                except HistoryError as error:
                    self.lost[number] = error
            return query.new_zeros(self.rows, query.shape[0], query.shape[2])

        return torch.cat(list(self.pool.map(own_rows, range(len(self.passes)))))


def run_many(model: LanguageModel, many: ManyPass, ids: Sequence[int]) -> torch.Tensor:
    """Run a question through the layers for every past; return the normed states [pasts, hidden] of the
    question's last row."""
    for ask in many.passes:
        ask.angles = angles_of(model, _places(ask, ask.layout.question, len(ids)))
    hidden = model.embed(torch.tensor(list(ids) * len(many.passes), device=model.device))[None]
    ones = torch.ones(1, hidden.shape[1], model.head_dim, dtype=hidden.dtype, device=model.device)
    attend_through(model.config)
    for layer in model.layers:
        hidden = layer(
            hidden,
            attention_mask=None,
            position_ids=None,
            past_key_values=many,
            use_cache=True,
            position_embeddings=(ones, torch.zeros_like(ones)),
        )
    out: torch.Tensor = model.norm(hidden[0].view(len(many.passes), len(ids), -1)[:, -1])
    return out


def _places(ask: AskPass, position: int, count: int) -> Ints:
    """Positions [axes, count] of `count` rows of text from `position` on."""
    axes = ask.layout.prefix_positions.shape[0]
    return np.broadcast_to(np.arange(position, position + count), (axes, count)).astype(np.int64)


def run_pass(model: LanguageModel, ask: AskPass, ids: Sequence[int], position: int) -> torch.Tensor:
    """Run rows of text through the layers; return the normed state [hidden] of the last row."""
    ask.angles = angles_of(model, _places(ask, position, len(ids)))
    hidden = model.embed(torch.tensor(ids, device=model.device))[None]
    ones = torch.ones(1, len(ids), model.head_dim, dtype=hidden.dtype, device=model.device)
    zeros = torch.zeros_like(ones)
    first = ask.states[0] is None
    attend_through(model.config)
    hooks = _residual_hooks(model, ask) if first and ask.predictor is Predictor.RESIDUAL else []
    last = len(model.layers) - 1
    try:
        for index, layer in enumerate(model.layers):
            run = (
                layer
                if index < last or ask.observer is not None
                else functools.partial(_answer_row, layer, ask)
            )
            hidden = run(
                hidden,
                attention_mask=None,
                position_ids=None,
                past_key_values=ask,
                use_cache=True,
                position_embeddings=(ones, zeros),
            )
    finally:
        for hook in hooks:
            hook.remove()
    out: torch.Tensor = model.norm(hidden[0, -1])
    return out


def _answer_row(layer: Any, ask: AskPass, hidden: torch.Tensor, **options: Any) -> torch.Tensor:
    """Run the last layer and return the state [1, 1, hidden] of the last row, because nothing reads the other
    rows. Keys and values of all rows are kept for text that may follow."""
    ask.answering = True
    out = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **options)[0]
    ask.answering = False
    hidden = hidden[:, -1:] + out[:, -1:]
    state: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return state


def _residual_hooks(model: LanguageModel, ask: AskPass) -> list[Any]:
    """Register hooks that predict the next layer's clusters from the state between attention and
    feed-forward."""

    def hook_of(layer: int) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            ask.reader.foresee(layer + 1, foreseen_query(model, layer + 1, inputs[0]))

        return hook

    parts: list[Any] = [layer.post_attention_layernorm for layer in list(model.layers)[:-1]]
    return [part.register_forward_pre_hook(hook_of(number)) for number, part in enumerate(parts)]
