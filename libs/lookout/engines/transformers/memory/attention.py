"""The pass of a question through the layers, with the memory read inside attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lookout.engines.transformers.attention import NAME, Handle, sdpa
from lookout.engines.transformers.memory.clock import clock
from lookout.engines.transformers.memory.layout import AskLayout
from lookout.engines.transformers.memory.reading import (
    LayerTrace,
    Observer,
    Reader,
)
from lookout.engines.transformers.model import LanguageModel
from lookout.engines.types import EngineError
from lookout.memory import (
    Predictor,
    Snapshot,
)
from lookout.memory.attention import merged, partial
from lookout.memory.types import Ints
from lookout.windows.rotary import Angles, Rotary


@dataclass(slots=True, eq=False)
class _LayerState:
    """What a layer keeps for the rows to come: the placed context, and the question's own K and V."""

    keys: torch.Tensor
    values: torch.Tensor
    bias: torch.Tensor | None
    frames: torch.Tensor | None
    own: int = 0


@dataclass(slots=True, eq=False)
class AskPass:
    """The cache object the layers see: one question over prefix, memory and window."""

    model: LanguageModel
    snapshot: Snapshot
    layout: AskLayout
    reader: Reader
    traces: Sequence[LayerTrace]
    predictor: Predictor = Predictor.NONE
    gathered: bool = True
    angles: Angles | None = None
    states: list[_LayerState | None] = field(default_factory=list)
    weight_of_frame: dict[int, float] = field(default_factory=dict)
    observer: Observer | None = None
    fixed: tuple[Angles, Angles] | None = None

    def __post_init__(self) -> None:
        self.states = [None] * len(self.model.layers)
        layout, model = self.layout, self.model
        self.fixed = (
            angles_of(model, layout.prefix_positions),
            angles_of(model, layout.window_positions),
        )

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[AskHandle, torch.Tensor]:
        """Called by the stock attention module with un-rotated keys."""
        return AskHandle(self, key[0], layer_idx), value  # type: ignore[arg-type]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of the cache protocol; positions are explicit here."""
        return 0

    def place(self, layer: int, query: torch.Tensor) -> _LayerState:
        """Read the memory for a layer and rotate everything to its place, once per question."""
        state = self.states[layer]
        if state is not None:
            return state
        mean = mean_query(query, self.model.kv_heads)
        if self.predictor is Predictor.QUERY and layer + 1 < len(self.states):
            self.reader.foresee(layer + 1, mean)
        memory = self.reader.read(layer, mean)
        keys, values, frames, bias = self._fixed(layer)
        if memory is not None:
            positions = self.layout.slots.positions(memory.frames, memory.places)
            keys.append(Rotary.rotate(memory.keys, angles_of(self.model, positions)))
            values.append(memory.values)
            frames.append(memory.frames)
            if memory.weights is not None:
                rest = sum(part.shape[1] for part in keys[:-1])
                bias = torch.cat([memory.weights.new_zeros(rest), memory.weights])
        state = _LayerState(
            torch.cat(keys, 1),
            torch.cat(values, 1),
            bias,
            torch.from_numpy(np.concatenate(frames)),
        )
        self.states[layer] = state
        return state

    def _fixed(
        self, layer: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Ints], torch.Tensor | None]:
        """Prefix and window of a layer, rotated to their places."""
        if self.fixed is None:
            raise EngineError("the pass has no layout")
        device, snapshot, layout = self.model.device, self.snapshot, self.layout
        rows = torch.from_numpy(layout.window_rows).to(device)
        window = [torch.cat([one.block.keys[layer] for one in snapshot.window], 1)]
        window.append(torch.cat([one.block.values[layer] for one in snapshot.window], 1))
        key, value = (part.to(device).index_select(1, rows) for part in window)
        prefix = snapshot.prefix
        keys = [
            Rotary.rotate(prefix.keys[layer].to(device), self.fixed[0]),
            Rotary.rotate(key, self.fixed[1]),
        ]
        values = [prefix.values[layer].to(device), value]
        frames = [np.full(prefix.keys.shape[2], -1, dtype=np.int64), layout.window_frames]
        return keys, values, frames, None


@dataclass(slots=True, eq=False)
class AskHandle(Handle):
    """What `AskPass.update` hands to the attention function in place of K."""

    def attend(self, query: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
        """Outputs [rows, heads, d] of un-rotated queries [heads, rows, d]."""
        owner: Any = self.owner
        trace: LayerTrace = owner.traces[self.layer]
        state: _LayerState = owner.place(self.layer, query)
        begun = clock()
        turned = Rotary.rotate(query, owner.angles)
        own = Rotary.rotate(self.key, owner.angles)
        rows, before = query.shape[1], state.own
        keys = torch.cat([state.keys, own], 1)
        values = torch.cat([state.values, value[0]], 1)
        bias = causal_bias(keys.shape[1], rows, state.bias, keys.dtype, keys.device)
        if owner.gathered:
            out = sdpa(turned, keys, values, bias, scaling)
        else:
            cut = state.keys.shape[1]
            parts = [
                partial(turned, state.keys, state.values, scaling, state.bias),
                partial(turned, own, value[0], scaling, bias[:, cut:]),
            ]
            out = merged(parts).transpose(0, 1)
        if before == 0 and owner.observer is not None:
            owner.observer(self.layer, turned, keys, bias, scaling)
        if before == 0:
            self._weigh(turned[:, -1:], keys, bias[-1:], scaling, state)
        # Later rows of the same answer see these.
        state.keys, state.values, state.own = keys, values, before + rows
        if state.bias is not None:
            state.bias = torch.cat([state.bias, state.bias.new_zeros(rows)])
        trace.attend_s += clock() - begun
        return out

    def _weigh(
        self, query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor, scaling: float, state: _LayerState
    ) -> None:
        """Add up what the question's last row looks at, by frame."""
        if state.frames is None:
            return
        owner: Any = self.owner
        heads, groups = query.shape[0], query.shape[0] // keys.shape[0]
        score = torch.matmul(query.view(keys.shape[0], groups, -1), keys.transpose(1, 2)) * scaling + bias
        weight = score.float().softmax(-1).sum((0, 1))[: len(state.frames)].cpu() / heads
        low = max(0, int(state.frames.max()) + 1)
        total = torch.zeros(low + 1).index_add_(0, state.frames.clamp(min=-1) % (low + 1), weight)
        for frame in torch.nonzero(total[:low])[:, 0].tolist():
            owner.weight_of_frame[frame] = owner.weight_of_frame.get(frame, 0.0) + float(total[frame])


def causal_bias(
    keys: int, rows: int, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Additive mask [rows, keys]: all but the last `rows` keys are seen by every row, with their bias; those
    up to the row's own."""
    out = torch.zeros(rows, keys, dtype=dtype, device=device)
    if bias is not None:
        out[:, : len(bias)] = bias
    out[:, keys - rows :] = torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu(1)
    return out


def mean_query(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Mean over question rows and each KV head's query heads, [kv_heads * d], of queries [heads, rows, d]."""
    heads, rows, size = query.shape
    return query.view(kv_heads, heads // kv_heads, rows, size).mean((1, 2)).reshape(-1)


def angles_of(model: LanguageModel, positions: Ints) -> Angles:
    """Rotation angles of positions int64 [axes, n] for a model."""
    return model.rotary.angles(
        torch.from_numpy(np.ascontiguousarray(positions)).to(model.device), model.dtype
    )


def foreseen_query(model: LanguageModel, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    """A coming layer's mean query from the hidden state [1, rows, hidden] before the present layer."""
    following: Any = model.layers[layer]
    attention = following.self_attn
    rows = hidden.shape[1]
    query = attention.q_proj(following.input_layernorm(hidden)).view(rows, model.heads, model.head_dim)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
    return mean_query(query.transpose(0, 1), model.kv_heads)


def run_pass(model: LanguageModel, ask: AskPass, ids: Sequence[int], position: int) -> torch.Tensor:
    """Run rows of text through the layers; the normed state [hidden] of the last one."""
    axes = ask.layout.prefix_positions.shape[0]
    places = np.broadcast_to(np.arange(position, position + len(ids)), (axes, len(ids))).astype(np.int64)
    ask.angles = angles_of(model, places)
    hidden = model.embed(torch.tensor(ids, device=model.device))[None]
    ones = torch.ones(1, len(ids), model.head_dim, dtype=hidden.dtype, device=model.device)
    zeros = torch.zeros_like(ones)
    first = ask.states[0] is None
    model.config._attn_implementation = NAME
    hooks = _residual_hooks(model, ask) if first and ask.predictor is Predictor.RESIDUAL else []
    for index, layer in enumerate(model.layers):
        begun = clock()
        trace = ask.traces[index]
        if first and ask.predictor is Predictor.PROJECTED and index + 1 < len(model.layers):
            ask.reader.foresee(index + 1, foreseen_query(model, index + 1, hidden))
        hidden = layer(
            hidden,
            attention_mask=None,
            position_ids=None,
            past_key_values=ask,
            use_cache=True,
            position_embeddings=(ones, zeros),
        )
        if first:
            trace.compute_s = clock() - begun - trace.retrieve_s - trace.move_s
    for hook in hooks:
        hook.remove()
    out: torch.Tensor = model.norm(hidden[0, -1])
    return out


def _residual_hooks(model: LanguageModel, ask: AskPass) -> list[Any]:
    """Hooks that foresee the next layer's clusters from the state between attention and feed-forward."""

    def hook_of(layer: int) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            ask.reader.foresee(layer + 1, foreseen_query(model, layer + 1, inputs[0]))

        return hook

    parts: list[Any] = [layer.post_attention_layernorm for layer in list(model.layers)[:-1]]
    return [part.register_forward_pre_hook(hook_of(number)) for number, part in enumerate(parts)]
