"""Every touch of vLLM's internals: the model class, the KV connector, the worker and the engine's handle.

Written for the one version in `VERSION`; `tests/vllm/test_contract.py` names what moved when another one is
installed. The mechanism, in the order of a step:

1. The engine sends a window's inputs to every worker (`collective_rpc`), then asks with plain token ids.
2. `WindowConnector` tells the scheduler how many leading rows come from the stream's own KV, and the workers
   which rows of which window the step holds.
3. Before the forward, `start_load_kv` rotates stored keys to their new positions, writes them into the
   request's blocks, and recomputes the refreshed runs: each run is a sequence of its own over the same block
   table, so every row sees the rows up to its own.
4. `WindowModel.forward` puts the plan's positions and the visual embeddings in place of the runner's.
5. Keys and values that a window computes are caught where the attention layers write them, and kept
   un-rotated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# The runner with `input_batch` and `attn_groups`; GPU platforms default to another one.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
import vllm
from torch import nn
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.forward_context import set_forward_context
from vllm.inputs import TokensPrompt
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import AutoWeightsLoader, init_vllm_registered_model, maybe_prefix
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backend import CommonAttentionMetadata

from lookout.engines.faults import FAILURES
from lookout.engines.vllm.store import Angles, Captured, SavedKV, WindowInputs, WindowStore, turned

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker

VERSION = "0.32.0"
ARCHITECTURE = "LookoutWindowModel"
# transformers' text configuration -> vLLM's class of the same language model.
LANGUAGE_MODELS = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3LLMForCausalLM",
    "llama": "LlamaForCausalLM",
}
VISION = ("visual.", "vision_tower.", "multi_modal_projector.", "image_newline", "mlp1.", "vision_model.")


def installed_version() -> str:
    """The version of vLLM that is installed."""
    return str(vllm.__version__).split("+")[0]


def renamed(name: str) -> str | None:
    """A checkpoint's weight name, published or saved by transformers, as `WindowModel` holds it; None for the
    vision half."""
    bare = name.removeprefix("model.")
    if bare.startswith(VISION):
        return None
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    if bare.startswith("language_model.lm_head."):
        return bare
    core = bare.removeprefix("language_model.").removeprefix("model.")
    return f"language_model.model.{core}"


class WindowModel(nn.Module, SupportsMRoPE):  # type: ignore[misc]
    """The language half of a stock checkpoint, fed by windows: the plan's positions, the blocks'
    embeddings."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        text = vllm_config.model_config.hf_config.get_text_config()
        self.config = text
        inner = maybe_prefix(prefix, "language_model")
        if text.model_type == "qwen3_vl_text":
            from vllm.model_executor.models.qwen3_vl import Qwen3LLMForCausalLM

            own = vllm_config.with_hf_config(text, architectures=["Qwen3ForCausalLM"])
            self.language_model: Any = Qwen3LLMForCausalLM(vllm_config=own, prefix=inner)
        else:
            self.language_model = init_vllm_registered_model(
                vllm_config,
                prefix=inner,
                hf_config=text,
                architectures=[LANGUAGE_MODELS[text.model_type]],
            )
        vision = vllm_config.model_config.hf_config.vision_config
        deep = text.model_type == "qwen3_vl_text"
        self.deepstack = len(vision.deepstack_visual_indexes) if deep else 0

    @property
    def rope(self) -> Any:
        """The rotary module that all layers share."""
        return self.language_model.model.layers[0].self_attn.rotary_emb

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token embeddings [n, hidden]."""
        out: torch.Tensor = self.language_model.embed_input_ids(input_ids)
        return out

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The runner's forward; a step of windows brings its own positions and embeddings."""
        assert input_ids is not None
        embeds = self.embed_input_ids(input_ids)
        deep = self._nothing(embeds)
        if has_kv_transfer_group():
            connector = get_kv_transfer_group()
            if isinstance(connector, WindowConnector):
                positions, embeds = connector.fed(positions, embeds, deep)
        return self.run(positions, embeds, deep)

    def run(
        self, positions: torch.Tensor, embeds: torch.Tensor, deep: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Decoder layers on rows with explicit positions [n] or [3, n] and embeddings [n, hidden]."""
        out: torch.Tensor
        if deep is None:
            out = self.language_model.model(None, positions, None, embeds)
        else:
            levels = {f"deepstack_input_embeds_{i}": level for i, level in enumerate(deep)}
            out = self.language_model.model(None, positions, None, embeds, IntermediateTensors(levels))
        return out

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [n, vocabulary]."""
        out: torch.Tensor | None = self.language_model.compute_logits(hidden_states)
        return out

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: Sequence[Any]
    ) -> tuple[torch.Tensor, int]:
        """Placeholders: every step of a window brings the plan's positions."""
        return torch.arange(len(input_tokens)).expand(3, -1).clone(), 0

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """The language half of the checkpoint's weights."""
        tied = "language_model.lm_head." if self.config.tie_word_embeddings else " "
        kept = (
            (new, weight)
            for name, weight in weights
            if (new := renamed(name)) is not None and not new.startswith(tied)
        )
        loaded: set[str] = AutoWeightsLoader(self).load_weights(kept)
        return loaded

    def _nothing(self, embeds: torch.Tensor) -> torch.Tensor | None:
        return embeds.new_zeros(self.deepstack, *embeds.shape) if self.deepstack else None


def register() -> None:
    """Make `WindowModel` known to this process; idempotent."""
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # The class, not its name: a name would be inspected in a process of its own, with another import.
        ModelRegistry.register_model(ARCHITECTURE, WindowModel)


register()


@dataclass(frozen=True, slots=True)
class Share:
    """Rows [start, stop) of one request in a step; rows [low, high) are loaded before it (none: equal)."""

    request: str
    window: str
    held: str
    ask: bool
    newline: tuple[int, ...]
    start: int
    stop: int
    low: int
    high: int
    blocks: tuple[int, ...]


@dataclass
class StepMeta(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler tells the workers about one step."""

    shares: list[Share] = field(default_factory=list)
    scheduled: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Tracked:
    """The scheduler's memory of one request."""

    window: str
    held: str
    load: int
    ask: bool
    newline: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    pending: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A forward's inputs: positions [n] or [3, n], embeddings [n, hidden], DeepStack [levels, n, hidden]."""

    positions: torch.Tensor
    embeds: torch.Tensor
    deep: torch.Tensor | None


@dataclass(slots=True, eq=False)
class _Catch:
    """Rows of a forward whose KV a window keeps."""

    window: str
    count: int
    rows: torch.Tensor
    where: torch.Tensor
    angles: Angles


class WindowConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Moves streams' KV into requests, refreshes runs, and catches what windows compute."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.vllm_config = vllm_config
        self.block_size = int(vllm_config.cache_config.block_size)
        self.requests: dict[str, _Tracked] = {}
        self.store = WindowStore()
        self.newline: torch.Tensor | None = None
        self.runner: Any = None
        self.model: WindowModel | None = None
        self._angles: dict[str, Angles] = {}
        self._catching: list[_Catch] = []

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        """Remember what a request asks for."""
        wish = (request.kv_transfer_params or {}).get("lookout")
        if wish is not None:
            self.requests[request.request_id] = _Tracked(
                wish["window"], wish["held"], wish["load"], wish["ask"], tuple(wish["newline"])
            )

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Leading rows that come from the stream's KV, behind those of this window that are still cached."""
        tracked = self.requests.get(request.request_id)
        if tracked is None:
            return 0, False
        end = min(tracked.load, request.num_tokens - 1)
        tracked.pending = (num_computed_tokens, max(end, num_computed_tokens))
        return max(0, end - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks of a request that is about to run."""
        tracked = self.requests.get(request.request_id)
        if tracked is None:
            return
        tracked.blocks = list(blocks.get_block_ids()[0])
        if not num_external_tokens:
            tracked.pending = (0, 0)

    def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
        """The step as windows see it."""
        start: dict[str, int] = {}
        for new in scheduler_output.scheduled_new_reqs:
            start[new.req_id] = new.num_computed_tokens
            if new.req_id in self.requests:
                self.requests[new.req_id].blocks = list(new.block_ids[0])
        old = scheduler_output.scheduled_cached_reqs
        for place, request in enumerate(old.req_ids):
            start[request] = old.num_computed_tokens[place]
            more = old.new_block_ids[place]
            if request in self.requests and more:
                blocks = [] if request in old.resumed_req_ids else self.requests[request].blocks
                self.requests[request].blocks = [*blocks, *more[0]]
        meta = StepMeta(scheduled=dict(scheduler_output.num_scheduled_tokens))
        for request, count in meta.scheduled.items():
            tracked = self.requests.get(request)
            if tracked is None:
                continue
            low, high = tracked.pending
            tracked.pending = (0, 0)
            first = start[request]
            meta.shares.append(
                Share(
                    request,
                    tracked.window,
                    tracked.held,
                    tracked.ask,
                    tracked.newline,
                    first,
                    first + count,
                    low,
                    high,
                    tuple(tracked.blocks),
                )
            )
        return meta

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are free at once: what is kept lies in the store."""
        self.requests.pop(request.request_id, None)
        return False, None

    # The worker's side.

    def bind(self, runner: Any) -> None:
        """Meet the runner after the model is loaded, and stand where attention layers write KV."""
        self.runner, self.model = runner, runner.get_model()
        for name, layer in self._layers():
            layer.impl.do_kv_cache_update = self._caught(name, layer.impl.do_kv_cache_update)

    def fed(
        self, positions: torch.Tensor, embeds: torch.Tensor, deep: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The step's positions and embeddings; `deep` is filled in place."""
        self._catching = []
        if self.runner is None or not self.has_connector_metadata():
            return positions, embeds
        batch = _Batch(positions.clone(), embeds, deep)
        for offset, share in self._placed():
            window = self.store.windows.get(share.window)
            if window is None:
                self.store.fail(share.window, "its inputs left the worker")
                continue
            self._feed(offset, share, window, batch)
            if not share.ask:
                self._catch(offset, share, window, embeds.device)
        return batch.positions, batch.embeds

    @torch.inference_mode()
    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Move stored KV into the step's blocks and refresh runs, all streams together."""
        self._catching = []
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMeta)
        runs: list[tuple[Share, WindowInputs, int, int]] = []
        for share in meta.shares:
            if share.high <= share.low:
                continue
            try:
                window = self.store.windows[share.window]
                self._load(share, window)
                wanted = () if share.ask else window.runs
                runs += [
                    (share, window, max(a, share.low), min(b, share.high))
                    for a, b in wanted
                    if b > share.low and a < share.high
                ]
            except FAILURES as error:
                self.store.fail(share.window, f"its KV could not be loaded: {type(error).__name__}: {error}")
        for group in self._groups(runs):
            self._refresh_safely(group)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are complete before the forward starts."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """KV is caught where it is written."""

    def wait_for_save(self) -> None:
        """Nothing is in flight."""
        self._catching = []

    def _layers(self) -> Iterator[tuple[str, Any]]:
        context = self.vllm_config.compilation_config.static_forward_context
        for name, layer in context.items():
            if isinstance(getattr(layer, "kv_cache", None), torch.Tensor) and hasattr(layer, "impl"):
                yield name, layer

    def _placed(self) -> Iterator[tuple[int, Share]]:
        """The step's shares with their first row in the batch."""
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMeta)
        shares = {share.request: share for share in meta.shares}
        offset = 0
        for request in self.runner.input_batch.req_ids:
            if request in shares:
                yield offset, shares[request]
            offset += meta.scheduled.get(request, 0)

    def _feed(self, offset: int, share: Share, window: WindowInputs, batch: _Batch) -> None:
        positions, here = batch.positions, slice(offset, offset + share.stop - share.start)
        wanted = window.at(share.start, share.stop).to(positions)
        positions[..., here] = wanted if positions.ndim == 2 else wanted[0]
        rows = torch.arange(share.start, share.stop)
        self._embed(window, rows, batch.embeds[here], _cut(batch.deep, here))
        for row in share.newline:
            if self.newline is not None and share.start <= row < share.stop:
                batch.embeds[offset + row - share.start] = self.newline.to(batch.embeds)

    @staticmethod
    def _embed(
        window: WindowInputs, rows: torch.Tensor, embeds: torch.Tensor, deep: torch.Tensor | None
    ) -> None:
        """Visual embeddings of ascending `rows` into `embeds` [n, hidden] and `deep` [levels, n, hidden]."""
        put, take = window.visual(rows)
        if not len(put):
            return
        put = put.to(embeds.device)
        embeds.index_copy_(0, put, window.embeddings[take].to(embeds))
        if deep is not None and window.deepstack is not None:
            deep.index_copy_(1, put, window.deepstack[:, take].to(deep))

    def _window_angles(self, window: WindowInputs) -> Angles:
        """Cosine and sine, float32 [rows, head_dim / 2], of a window, as the model's own rotation has
        them."""
        if window.key not in self._angles:
            self._angles = {key: value for key, value in self._angles.items() if key in self.store.windows}
            self._angles[window.key] = self.angles(window.positions)
        return self._angles[window.key]

    def angles(self, positions: torch.Tensor) -> Angles:
        """Cosine and sine of positions [axes, n] from the rotary module's own table."""
        assert self.model is not None
        rope = self.model.rope
        table = rope.cos_sin_cache
        cos, sin = table[positions.to(table.device)].float().chunk(2, dim=-1)
        sections = getattr(rope, "mrope_section", None)
        if positions.shape[0] == 1 or not sections:
            return cos[0], sin[0]
        axis = torch.zeros(cos.shape[-1], dtype=torch.long, device=cos.device)
        if getattr(rope, "mrope_interleaved", False):
            axis[1 : sections[1] * 3 : 3], axis[2 : sections[2] * 3 : 3] = 1, 2
        else:
            axis = torch.repeat_interleave(torch.arange(3), torch.tensor(sections)).to(cos.device)
        lanes = torch.arange(len(axis), device=cos.device)
        return cos[axis, :, lanes].T.contiguous(), sin[axis, :, lanes].T.contiguous()

    def _slots(self, share: Share, rows: torch.Tensor) -> torch.Tensor:
        blocks = torch.tensor(share.blocks, dtype=torch.int64)
        return blocks[rows // self.block_size] * self.block_size + rows % self.block_size

    def _load(self, share: Share, window: WindowInputs) -> None:
        """Write stored rows [low, high) into the request's blocks; rows without a source are refreshed."""
        held = self.store.streams[share.held] if share.ask else self.store.parent(window)
        rows = torch.arange(share.low, share.high)
        source = rows if share.ask else window.source[rows]
        rows, source = rows[source >= 0], source[source >= 0]
        if len(source) and int(source.max()) >= held.rows:
            raise ValueError(f"the window reuses row {int(source.max())} of {held.rows}")
        slots = self._slots(share, rows)
        cos, sin = self._window_angles(window)
        turn = (cos[rows.to(cos.device)], sin[rows.to(sin.device)])
        for name, layer in self._layers():
            key, value = held.layers[name]
            take, device = source.to(key.device), layer.kv_cache.device
            moved = turned(key.index_select(0, take).to(device), turn)
            layer.impl.do_kv_cache_update(
                layer, moved, value.index_select(0, take).to(device), layer.kv_cache, slots.to(device)
            )

    def _groups(
        self, runs: Sequence[tuple[Share, WindowInputs, int, int]]
    ) -> Iterator[list[tuple[Share, WindowInputs, int, int]]]:
        """Runs in batches within the activation budget vLLM has measured; long runs are cut, in order."""
        limit = int(self.vllm_config.scheduler_config.max_num_batched_tokens)
        group: list[tuple[Share, WindowInputs, int, int]] = []
        held = 0
        for share, window, first, last in runs:
            for start in range(first, last, limit):
                stop = min(start + limit, last)
                if held + stop - start > limit:
                    yield group
                    group, held = [], 0
                group.append((share, window, start, stop))
                held += stop - start
        if group:
            yield group

    def _refresh_safely(self, group: Sequence[tuple[Share, WindowInputs, int, int]]) -> None:
        """Refresh a batch of runs; when it fails, each stream alone, so that only the culprit is lost."""
        alive = [run for run in group if run[0].window not in self.store.failed]
        windows = list(dict.fromkeys(run[0].window for run in alive))
        try:
            if alive:
                self._refresh(alive)
        except FAILURES as error:
            if len(windows) == 1:
                self.store.fail(windows[0], f"its refresh failed: {type(error).__name__}: {error}")
                return
            for window in windows:
                self._refresh_safely([run for run in alive if run[0].window == window])

    def _refresh(self, runs: Sequence[tuple[Share, WindowInputs, int, int]]) -> None:
        """Recompute runs as varlen sequences over their requests' block tables, causal to the row."""
        assert self.model is not None
        model, device = self.model, self.runner.device
        rows = [torch.arange(first, last) for *_, first, last in runs]
        counts = torch.tensor([len(part) for part in rows], dtype=torch.int32)
        total, widest = int(counts.sum()), max(-(-last // self.block_size) for *_, last in runs)
        ids = torch.cat([window.token_ids[part] for (_, window, *_), part in zip(runs, rows, strict=True)])
        embeds = model.embed_input_ids(ids.to(device)).clone()
        deep = embeds.new_zeros(model.deepstack, *embeds.shape) if model.deepstack else None
        positions, slots, offset = [], [], 0
        table = torch.zeros(len(runs), widest, dtype=torch.int32)
        self._catching = []
        for place, ((share, window, first, last), part) in enumerate(zip(runs, rows, strict=True)):
            here = slice(offset, offset + len(part))
            self._embed(window, part, embeds[here], _cut(deep, here))
            positions.append(window.positions[:, first:last])
            slots.append(self._slots(share, part))
            blocks = share.blocks[: -(-last // self.block_size)]
            table[place, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            self._catch_rows(offset, part, window, device)
            offset += len(part)
        where = torch.cat(positions, 1).to(device)
        starts = torch.zeros(len(runs) + 1, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        ends = torch.tensor([last for *_, last in runs], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=ends.to(device),
            seq_lens_cpu_upper_bound=ends,
            num_reqs=len(runs),
            num_actual_tokens=total,
            max_query_len=int(counts.max()),
            max_seq_len=int(ends.max()),
            block_table_tensor=table.to(device),
            slot_mapping=torch.cat(slots).to(device),
            causal=True,
            positions=torch.cat(rows).to(device),
        )
        metadata, mapping = self._metadata(common)
        with set_forward_context(
            metadata, self.vllm_config, num_tokens=total, slot_mapping=mapping, skip_compiled=True
        ):
            model.run(where if self.runner.uses_mrope else where[0], embeds, deep)
        self._catching = []

    def _metadata(self, common: CommonAttentionMetadata) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        metadata: dict[str, Any] = {}
        mapping: dict[str, torch.Tensor] = {}
        for groups in self.runner.attn_groups:
            for group in groups:
                # A builder of its own: the runner's may hold buffers of the step that is about to run.
                builder = group.backend.get_builder_cls()(
                    group.kv_cache_spec, group.layer_names, self.vllm_config, self.runner.device
                )
                built = builder.build(0, common)
                for name in group.layer_names:
                    metadata[name], mapping[name] = built, common.slot_mapping
        return metadata, mapping

    def _catch(self, offset: int, share: Share, window: WindowInputs, device: torch.device) -> None:
        """Note the rows of a share that the window keeps; they lie at `offset` in the batch."""
        rows = torch.arange(min(share.start, window.rows), min(share.stop, window.rows))
        self._catch_rows(offset, rows, window, device)

    def _catch_rows(
        self, offset: int, rows: torch.Tensor, window: WindowInputs, device: torch.device
    ) -> None:
        if not len(rows) or not len(window.computed):
            return
        found = torch.searchsorted(window.computed, rows).clamp(max=len(window.computed) - 1)
        kept = window.computed[found] == rows
        if not bool(kept.any()):
            return
        cos, sin = self._window_angles(window)
        chosen = rows[kept].to(cos.device)
        places = (torch.nonzero(kept)[:, 0] + offset).to(device)
        turn = (cos[chosen], sin[chosen])
        self._catching.append(_Catch(window.key, len(window.computed), places, found[kept], turn))

    def _caught(self, name: str, write: Any) -> Any:
        def update(
            layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor
        ) -> None:
            write(layer, key, value, kv_cache, slots)
            heads, dim = layer.num_kv_heads, layer.head_size
            for one in self._catching:
                chosen = key.view(-1, heads, dim).index_select(0, one.rows)
                captured = self.store.captured.setdefault(one.window, Captured())
                captured.put(
                    name,
                    one.count,
                    one.where,
                    turned(chosen, one.angles, back=True),
                    value.view(-1, heads, dim).index_select(0, one.rows),
                )

        return update


def _cut(deep: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    return None if deep is None else deep[:, rows]


class WindowWorker(BaseWorker):  # type: ignore[misc, valid-type]
    """vLLM's worker, with a connector that knows its runner and the calls the engine makes to every rank."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as ever, then let the connector meet the runner."""
        out = super().compile_or_warm_up_model()
        self.lookout.bind(self.model_runner)
        return out

    @property
    def lookout(self) -> WindowConnector:
        """This rank's connector."""
        connector = get_kv_transfer_group()
        assert isinstance(connector, WindowConnector)
        return connector

    def lookout_newline(self, newline: torch.Tensor | None) -> None:
        """The model's learned newline, where it has one."""
        self.lookout.newline = newline

    def lookout_admit(self, windows: Sequence[WindowInputs]) -> None:
        """Take the inputs of windows whose requests follow."""
        for window in windows:
            self.lookout.store.windows[window.key] = window

    def lookout_commit(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Keep what windows computed; returns the causes of those that failed."""
        causes = {key: self.lookout.store.commit(key, name) for key, name in pairs}
        return {key: cause for key, cause in causes.items() if cause is not None}

    def lookout_release(self, keys: Sequence[str], names: Sequence[str]) -> None:
        """Forget windows that are done and free streams."""
        self.lookout.store.release(keys)
        self.lookout.store.drop(names)

    def lookout_clean(self) -> None:
        """Remove what is not finite from the block table. Kernels read whole pages, and a masked slot that is
        not a number makes the answer of the next window on its page none either."""
        for _, layer in self.lookout._layers():
            layer.kv_cache.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def lookout_memory(self) -> dict[str, int]:
        """Bytes of each stream's KV on this rank."""
        return {name: kv.bytes for name, kv in self.lookout.store.streams.items()}

    def lookout_stream(self, name: str) -> SavedKV:
        """A stream's canonical KV on this rank, for tests."""
        return self.lookout.store.streams[name]

    def lookout_tables(self) -> list[torch.Tensor]:
        """The block table of every layer, for tests."""
        return [layer.kv_cache for _, layer in self.lookout._layers()]

    def lookout_windows(self) -> list[str]:
        """Keys of the windows in flight, for tests."""
        return list(self.lookout.store.windows)

    def lookout_held(self) -> tuple[int, int]:
        """Windows and captures in flight, for tests that nothing leaks."""
        return len(self.lookout.store.windows), len(self.lookout.store.captured)


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One vLLM request: prompt ids, the window they belong to, and how many leading rows are loaded from the
    KV held under a name. `ask`: the window is complete, only what follows it is computed."""

    window: str
    held: str
    prompt: list[int]
    load: int
    ask: bool
    salt: str
    newline: tuple[int, ...] = ()
    tokens: int = 1
    stop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What came back: generated ids, and the raw logits of the answer tokens at the first of them."""

    tokens: tuple[int, ...]
    logits: dict[int, float]
    cached: int


class Backend:
    """One vLLM engine in this process (and one process more per further tensor-parallel rank)."""

    def __init__(
        self,
        checkpoint: str,
        *,
        dtype: str,
        answers: tuple[int, int],
        newline: torch.Tensor | None,
        max_rows: int,
        max_batched_rows: int,
        block_size: int,
        kv_cache_bytes: int,
        tensor_parallel: int,
        eager: bool,
    ) -> None:
        self.answers = answers
        if tensor_parallel > 1 and current_platform.is_cpu():
            # By default every rank wants a NUMA node of its own.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        compilation = {} if eager else {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}
        self.llm = LLM(
            model=checkpoint,
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=max_rows,
            max_num_batched_tokens=max_batched_rows,
            block_size=block_size,
            kv_cache_memory_bytes=kv_cache_bytes,
            tensor_parallel_size=tensor_parallel,
            enforce_eager=eager,
            enable_prefix_caching=True,
            hf_overrides={"architectures": [ARCHITECTURE]},
            worker_cls=f"{__name__}.WindowWorker",
            kv_transfer_config=KVTransferConfig(
                kv_connector="WindowConnector", kv_connector_module_path=__name__, kv_role="kv_both"
            ),
            logprobs_mode="raw_logits",
            seed=0,
            **compilation,
        )
        config = self.llm.llm_engine.vllm_config.cache_config
        self.capacity = int(config.num_gpu_blocks - 1) * int(config.block_size)
        if newline is not None:
            self.call("lookout_newline", newline)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call every rank."""
        out: list[Any] = self.llm.collective_rpc(method, args=arguments)
        return out

    def generate(self, asks: Sequence[EngineCall]) -> list[EngineOutput]:
        """Run requests as one batch, greedily; the answers in their order."""
        if not asks:
            return []
        prompts = [TokensPrompt(prompt_token_ids=ask.prompt, cache_salt=ask.salt) for ask in asks]
        params = [self._params(ask) for ask in asks]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [self._output_of(output) for output in outputs]

    def abort(self) -> None:
        """Throw away every request that an error left behind."""
        engine = self.llm.llm_engine
        left = list(engine.output_processor.request_states)
        if left:
            engine.abort_request(left, internal=True)

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self.llm.llm_engine.engine_core.shutdown()

    def _params(self, ask: EngineCall) -> SamplingParams:
        wish = {
            "window": ask.window,
            "held": ask.held,
            "load": ask.load,
            "ask": ask.ask,
            "newline": list(ask.newline),
        }
        return SamplingParams(
            max_tokens=ask.tokens,
            temperature=0.0,
            detokenize=False,
            ignore_eos=True,
            stop_token_ids=list(ask.stop),
            logprob_token_ids=list(self.answers),
            extra_args={"kv_transfer_params": {"lookout": wish}},
        )

    def _output_of(self, output: Any) -> EngineOutput:
        first = output.outputs[0]
        scores = first.logprobs[0] if first.logprobs else {}
        logits = {token: float(scores[token].logprob) for token in self.answers if token in scores}
        return EngineOutput(tuple(first.token_ids), logits, int(output.num_cached_tokens or 0))
