"""Questions about the past: a camera's memory read inside attention (Mosaic).

Only the question's rows run through the layers. In every layer their query selects clusters, which are placed
between the prefix and the window; nothing of the question is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from lookout.engines.transformers.attention import NAME, Handle, sdpa
from lookout.engines.transformers.engine import TransformersEngine
from lookout.engines.transformers.model import LanguageModel
from lookout.engines.types import EngineError, PositionError, StreamLostError
from lookout.memory import (
    BornBlock,
    Cluster,
    HistoryError,
    KVShape,
    LayerWork,
    Predictor,
    Prefetcher,
    Prefix,
    RetrievalSettings,
    Retrieved,
    Slots,
    Snapshot,
    Span,
    Transfer,
    retrieve,
    token_budget,
)
from lookout.memory.attention import merged, partial
from lookout.memory.types import Ints
from lookout.windows import PromptPart, StrideBlock, WindowPlan
from lookout.windows.positions import RowLayout, positions_of
from lookout.windows.rotary import Angles, Rotary

EVIDENCE = 8
"""Frames named as evidence at most."""


class Clock:
    """What times an answer's stages: the wall clock. Benches on a busy CPU put the thread's own time here."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def clock() -> float:
    """Seconds of the present clock."""
    return Clock.now()


# Born KV: what the engine computed for a block when the block was newest.


def frame_embeddings(block: StrideBlock) -> torch.Tensor:
    """Mean vision-tower token of each frame, float32 [frames, hidden].

    A group that a frame dropped counts as it was when the block last kept it: its content did not change. A
    block opens with a whole frame, so the result is a function of the block alone.
    """
    hidden = block.frames[0].tokens.shape[1] if block.frames else 0
    groups = block.frames[0].keep.size if block.frames else 0
    latest = torch.zeros(groups, hidden)
    seen = np.zeros(groups, dtype=bool)
    out = torch.zeros(len(block.frames), hidden)
    for number, frame in enumerate(block.frames):
        latest[torch.from_numpy(frame.kept)] = frame.tokens.float().cpu()
        seen[frame.kept] = True
        out[number] = latest[torch.from_numpy(seen)].mean(0) if seen.any() else 0.0
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
        frame_us: time from frame to frame, for a family that counts time (Qwen2.5-VL) and a block of one
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
        one = block.frames[part.frame]
        inside, stop = positions_of(rule, compact, _alone(part), [one])
        places.append(inside)
        grid = [1, *one.keep.shape] if rule.kind == "qwen2_5_vl" else [stop] * rule.axes
        extent = np.maximum(extent, np.array(grid, dtype=np.int64))
    step = extent
    if rule.kind == "qwen2_5_vl":
        step = np.array([_ticks(rule.ticks_per_second, block, frame_us), 0, 0], dtype=np.int64)
    return BornBlock(
        stream=plan.stream,
        index=block.index,
        times_us=np.array([one.time_us for one in block.frames], dtype=np.int64),
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


def _ticks(per_second: float, block: StrideBlock, frame_us: int | None) -> int:
    times = [frame.time_us for frame in block.frames]
    if len(times) > 1:
        frame_us = (times[-1] - times[0]) // (len(times) - 1)
    return max(1, round(per_second * (frame_us or 1_000_000) / 1e6))


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


# What a layer of an answer reads.


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """Memory rows of one layer: `keys` and `values` [kv_heads, n, d] (keys un-rotated), where they stand
    (`frames` int64 [n], `places` int64 [axes, n]), and `weights` [n], the log of how many tokens a row
    stands for, or None where each is one token. `parts` are the sizes of contiguous slabs among the rows."""

    keys: torch.Tensor
    values: torch.Tensor
    frames: Ints
    places: Ints
    weights: torch.Tensor | None = None
    parts: tuple[int, ...] = ()


Observer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]
"""Sees each layer's rotated queries [heads, rows, d], rotated keys [kv_heads, n, d] (prefix, window, memory,
question), additive mask [rows, n] and scaling; for measurements."""


class Reader(Protocol):
    """Chooses what each layer of an answer reads of the past."""

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        """The rows for one layer, given its mean query [width]; None for nothing."""
        ...

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """A guess of a coming layer's mean query [width], to fetch ahead."""
        ...


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
    held = any(int(index.counts.sum()) for index in snapshot.layers)
    width = span if held else 0
    start = snapshot.prefix.positions.shape[1]
    origin = np.full(len(snapshot.step), start, dtype=np.int64)
    blocks = snapshot.window
    frames = np.concatenate([one.block.frame + one.first_frame for one in blocks])
    places = np.concatenate([one.block.places for one in blocks], 1)
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


@dataclass(slots=True)
class LayerTrace:
    """One layer of one answer: what was read and moved, and how long it took (wall seconds; `compute_s` is
    everything but choosing and moving)."""

    tokens: int = 0
    clusters: int = 0
    representatives: int = 0
    scored: int = 0
    retrieve_s: float = 0.0
    move_s: float = 0.0
    attend_s: float = 0.0
    compute_s: float = 0.0
    ids: tuple[int, ...] = ()
    transfer: Transfer = field(default_factory=Transfer)

    @property
    def work(self) -> LayerWork:
        """For the link model."""
        moved = self.transfer
        return LayerWork(
            self.compute_s + self.retrieve_s,
            moved.early_bytes,
            moved.early_copies,
            moved.late_bytes,
            moved.late_copies,
            moved.wasted_bytes,
            moved.wasted_copies,
        )


class ClusterReader:
    """Two-stage retrieval over a snapshot, with clusters moved to the device, ahead where foreseen."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: RetrievalSettings,
        prefetcher: Prefetcher,
        traces: Sequence[LayerTrace],
        *,
        predictor: Predictor = Predictor.NONE,
        span: Span | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.snapshot, self.settings, self.prefetcher = snapshot, settings, prefetcher
        self.traces, self.predictor = traces, predictor
        self.span = span or Span()
        self.device = device or torch.device("cpu")
        self.budget = token_budget(snapshot, settings)

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Begin to move what a coming layer will probably need."""
        self.prefetcher.foresee(layer, self._choose(layer, query).clusters)

    def _choose(self, layer: int, query: torch.Tensor) -> Retrieved:
        return retrieve(
            self.snapshot, layer, query.cpu(), self.budget, settings=self.settings, span=self.span
        )

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        """Choose with the layer's own query, complete what was moved, and put it into temporal order."""
        trace, begun = self.traces[layer], clock()
        found = self._choose(layer, query)
        chosen = clock()
        data, moved = self.prefetcher.complete(layer, found.clusters, max(1, found.scored))
        trace.retrieve_s, trace.move_s = chosen - begun, clock() - chosen
        trace.tokens, trace.clusters, trace.scored = found.tokens, len(found.clusters), found.scored
        trace.representatives, trace.transfer = len(found.representatives), moved
        trace.ids = tuple(cluster.id for cluster in found.clusters)
        return context_of(self.snapshot, found, data, self.span, self.device, self.settings.weighted)


def context_of(  # noqa: PLR0917
    snapshot: Snapshot,
    found: Retrieved,
    data: Sequence[torch.Tensor],
    span: Span,
    device: torch.device,
    weighted: bool = True,
) -> LayerContext | None:
    """Retrieved slabs and representatives as one layer's memory rows."""
    stands = found.representatives
    if not data and not len(stands):
        return None
    axes = snapshot.token_place.shape[0]
    tokens = np.concatenate([np.zeros(0, np.int64), *(cluster.slab.tokens for cluster in found.clusters)])
    frames, places = snapshot.lookup(tokens)
    rows = torch.cat(list(data)) if data else None
    parts = tuple(cluster.count for cluster in found.clusters)
    if rows is not None and not span.whole:
        inside = np.flatnonzero(span.holds(frames))
        rows, frames, places = (
            rows[torch.from_numpy(inside).to(rows.device)],
            frames[inside],
            places[:, inside],
        )
        parts = (len(inside),)
    heads, size = snapshot.prefix.keys.shape[1], snapshot.prefix.keys.shape[3]
    dtype = snapshot.prefix.keys.dtype
    shaped = [x.to(device, dtype).view(-1, heads, size) for x in (stands.keys, stands.values)]
    if rows is not None:
        shaped = [torch.cat([rows[:, half], shaped[half]]) for half in (0, 1)]
    weights = None
    if len(stands) and weighted:
        weights = torch.zeros(shaped[0].shape[0], dtype=dtype, device=device)
        weights[len(tokens) if span.whole else len(frames) :] = stands.counts.to(device).log().to(dtype)
    return LayerContext(
        keys=shaped[0].transpose(0, 1),
        values=shaped[1].transpose(0, 1),
        frames=np.concatenate([frames, stands.frames]),
        places=np.concatenate([places.reshape(axes, -1), stands.places], 1),
        weights=weights,
        parts=parts,
    )


# The pass.


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
            told = state.bias
            parts = [
                partial(turned, state.keys, state.values, scaling, told),
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


# Answers.


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame the answer rests on: its stream time, and the share of attention it got."""

    time_us: int
    weight: float


@dataclass(frozen=True, slots=True)
class AskCost:
    """What an answer cost: rows of the question; the mean over layers of tokens and representatives read;
    bytes and copies moved to the device in all layers; FLOPs; wall seconds to the first token by stage."""

    question_tokens: int
    memory_tokens: float
    representatives: float
    window_tokens: int
    bytes_moved: int
    copies: int
    flops: int
    first_token_s: float
    retrieve_s: float
    move_s: float
    attend_s: float


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The answer to a question about the past.

    `covered_from_us` is the stream time from which KV was held when it was asked, `covered_to_us` that of
    the newest frame. `evidence` names the frames with most attention, in order of time. `traces` say what
    each layer read.
    """

    question: str
    p_yes: float
    yes_logit: float
    no_logit: float
    text: str | None
    evidence: tuple[Evidence, ...]
    covered_from_us: int | None
    covered_to_us: int
    cost: AskCost
    traces: tuple[LayerTrace, ...]

    @property
    def fetched(self) -> Mapping[int, tuple[int, ...]]:
        """Clusters that each layer's verified retrieval read."""
        return {layer: trace.ids for layer, trace in enumerate(self.traces) if trace.ids}


def mover(device: torch.device) -> Callable[[Cluster], torch.Tensor]:
    """How a cluster gets to the device: one copy. On CPU memory is the device, and what is read from a file
    is read here; on CUDA through pinned memory on a stream of its own."""
    if device.type == "cpu":
        return lambda cluster: cluster.slab.data.clone() if cluster.slab.on_disk else cluster.slab.data
    cuda: Any = torch.cuda
    side = cuda.Stream(device)

    def move(cluster: Cluster) -> torch.Tensor:
        pinned = cluster.slab.data.pin_memory()
        with cuda.stream(side):
            out = pinned.to(device, non_blocking=True)
        side.synchronize()
        return out

    return move


def ask(
    engine: TransformersEngine,
    snapshot: Snapshot,
    question: str,
    *,
    retrieval: RetrievalSettings | None = None,
    predictor: Predictor | None = None,
    resident: Callable[[int], bool] = lambda cluster: False,
    since_us: int | None = None,
    until_us: int | None = None,
    describe: int = 0,
    on_text: Callable[[str], None] | None = None,
    reader: Callable[[Sequence[LayerTrace]], Reader] | None = None,
    gathered: bool = True,
    observer: Observer | None = None,
) -> MemoryAnswer:
    """Answer a question over a snapshot of a camera's memory.

    Args:
        engine: gives the model, its prompt layout and tokenizer; its streams are not touched.
        snapshot: of the memory; what it shows does not change meanwhile.
        question: text; the checkpoint's question head and tail are put around it.
        retrieval: budgets.
        predictor: how clusters are fetched ahead; None: `RESIDUAL` where the device is not the host, else
            nothing is.
        resident: which clusters are on the device already.
        since_us: only frames from here on (stream time); `until_us` only frames before.
        describe: tokens of text to write at most; 0 for p(yes) alone.
        on_text: called with each piece of the text as it is written.
        reader: makes what replaces two-stage retrieval (for comparisons).
        gathered: one attention call over everything; else partial softmaxes that are merged.
        observer: sees every layer's attention (for measurements).

    Raises:
        PositionError: the question would stand beyond the model's positions.
        HistoryError: nothing of the memory lies in the given time range.
    """
    model, settings = engine.model, retrieval or RetrievalSettings()
    if predictor is None:
        predictor = Predictor.NONE if model.device.type == "cpu" else Predictor.RESIDUAL
    ids = engine.suffix(question)
    allowed = Span.of_times(snapshot.times_us, since_us, until_us)
    if not allowed.whole and not allowed.holds(_held_frames(snapshot)).any():
        raise HistoryError(
            f"nothing is remembered between {since_us} and {until_us} us: the memory covers "
            f"{snapshot.covered_from_us} to {int(snapshot.times_us[-1])} us"
        )
    layout = ask_layout(snapshot, settings.span, allowed)
    if layout.question + len(ids) + describe > model.limit:
        raise PositionError(
            f"the question reaches position {layout.question + len(ids) + describe}, but {model.family} "
            f"counts to {model.limit - 1}: lower span, or the blocks of the window"
        )
    traces = [LayerTrace() for _ in model.layers]
    moving = Prefetcher(mover(model.device), resident, ahead=predictor is not Predictor.NONE)
    with torch.inference_mode(), moving:
        begun = clock()
        told: Reader = ClusterReader(
            snapshot, settings, moving, traces, predictor=predictor, span=allowed, device=model.device
        )
        if reader is not None:
            told = reader(traces)
        state = AskPass(model, snapshot, layout, told, traces, predictor, gathered, observer=observer)
        last = run_pass(model, state, ids, layout.question)
        rows = model.head.weight.index_select(0, engine._answer_rows)
        pair = torch.nn.functional.linear(last, rows).cpu()
        spent = clock() - begun
        if not bool(torch.isfinite(pair).all()):
            raise EngineError(f"the answer to {question!r} is not finite; check the weights")
        text = None
        if describe:
            text = "".join(_write(engine, state, last, layout.question + len(ids), describe, on_text))
    return MemoryAnswer(
        question=question,
        p_yes=float(pair.double().softmax(-1)[0]),
        yes_logit=float(pair[0]),
        no_logit=float(pair[1]),
        text=text,
        evidence=_evidence(state, snapshot),
        covered_from_us=snapshot.covered_from_us,
        covered_to_us=int(snapshot.times_us[-1]),
        cost=_cost(model, state, len(ids), spent),
        traces=tuple(traces),
    )


def _held_frames(snapshot: Snapshot) -> Ints:
    """The frames whose KV is held, ascending."""
    parts = [part for part in snapshot.layers[0].partitions if part is not None]
    tokens = [cluster.slab.tokens for part in parts for cluster in part.clusters]
    frames = [np.unique(one.block.frame) + one.first_frame for one in snapshot.window]
    frames += [snapshot.lookup(np.concatenate(tokens))[0]] if tokens else []
    out: Ints = np.unique(np.concatenate(frames))
    return out


def _write(  # noqa: PLR0917
    engine: TransformersEngine,
    state: AskPass,
    last: torch.Tensor,
    position: int,
    count: int,
    on_text: Callable[[str], None] | None,
) -> Iterator[str]:
    """Greedy text over what the question has read, token by token."""
    ids: list[int] = []
    shown = ""
    for _ in range(count):
        token = int(engine.model.head(last).argmax())
        if token in engine.layout.stop:
            return
        ids.append(token)
        whole = str(engine._tokenizer.decode(ids, skip_special_tokens=True))
        piece, shown = whole[len(shown) :], whole
        if on_text is not None and piece:
            on_text(piece)
        yield piece
        last = run_pass(engine.model, state, [token], position)
        position += 1


def _evidence(state: AskPass, snapshot: Snapshot) -> tuple[Evidence, ...]:
    total = sum(state.weight_of_frame.values()) or 1.0
    best = sorted(state.weight_of_frame.items(), key=lambda item: (-item[1], item[0]))[:EVIDENCE]
    return tuple(
        Evidence(int(snapshot.times_us[frame]), round(weight / total, 4)) for frame, weight in sorted(best)
    )


def _cost(model: LanguageModel, state: AskPass, rows: int, spent: float) -> AskCost:
    traces, layers = state.traces, len(model.layers)
    seen = sum(held.keys.shape[1] for held in state.states if held is not None)
    moved = [trace.transfer for trace in traces]
    scored = sum(trace.scored for trace in traces)
    flops = layers * 2 * model.linear * rows + 4 * model.heads * model.head_dim * rows * seen
    return AskCost(
        question_tokens=rows,
        memory_tokens=sum(trace.tokens for trace in traces) / layers,
        representatives=sum(trace.representatives for trace in traces) / layers,
        window_tokens=len(state.layout.window_rows),
        bytes_moved=sum(m.early_bytes + m.late_bytes + m.wasted_bytes for m in moved),
        copies=sum(m.early_copies + m.late_copies + m.wasted_copies for m in moved),
        flops=flops + 2 * model.kv_heads * model.head_dim * scored,
        first_token_s=spent,
        retrieve_s=sum(trace.retrieve_s for trace in traces),
        move_s=sum(trace.move_s for trace in traces),
        attend_s=sum(trace.attend_s for trace in traces),
    )
