"""The worker's side: places stored KV, recomputes refreshed ranges, and captures what windows compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.forward_context import set_forward_context
from vllm.platforms import current_platform
from vllm.v1.attention.backend import CommonAttentionMetadata

from lookout.models.engines.faults import FAILURES
from lookout.models.engines.vllm.internals.model import StepInputs, WindowModel
from lookout.models.engines.vllm.internals.scheduler import SchedulerSide, Share, StepMeta
from lookout.models.engines.vllm.store import Angles, Captured, SavedKV, WindowInputs, WindowStore, turned

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker


@dataclass(slots=True, eq=False)
class _Catch:
    """The rows of a forward pass whose KV belongs to a window."""

    window: str
    count: int
    rows: torch.Tensor
    where: torch.Tensor
    angles: Angles


class WorkerSide:
    """Moves streams' KV into requests, refreshes ranges, and captures what windows compute."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.page = int(vllm_config.cache_config.block_size)
        self.store = WindowStore()
        self.newline: torch.Tensor | None = None
        self.runner: Any = None
        self.model: WindowModel | None = None
        self.step: StepMeta | None = None
        self._angles: dict[str, Angles] = {}
        self._catching: list[_Catch] = []

    def bind(self, runner: Any) -> None:
        """Use the runner of the loaded model, and wrap the function with which its layers write KV."""
        self.runner, self.model = runner, runner.get_model()
        self.model.feed = self.feed
        for name, layer in self.layers():
            layer.impl.do_kv_cache_update = self._caught(name, layer.impl.do_kv_cache_update)
        self.store.layers = tuple(name for name, _ in self.layers())

    def feed(self, inputs: StepInputs) -> None:
        """Set the step's positions, embeddings and DeepStack features, and record which rows to capture."""
        self._catching = []
        if self.step is None:
            return
        for offset, share in self._placed(self.step):
            window = self.store.windows.get(share.window)
            if window is None:
                self.store.fail(share.window, "its inputs are no longer in the worker")
                continue
            self._feed(offset, share, window, inputs)
            if not share.ask:
                self._catch(offset, share, window, inputs.embeds.device)

    @torch.inference_mode()
    def load(self) -> None:
        """Move stored KV into the step's pages and refresh ranges, for all streams together."""
        self._catching = []
        runs: list[tuple[Share, WindowInputs, int, int]] = []
        for share in self.step.shares if self.step is not None else ():
            if share.high <= share.low:
                continue
            try:
                window = self.store.windows[share.window]
                self._load(share, window)
                ranges = () if share.ask else window.runs
                runs += [
                    (share, window, max(a, share.low), min(b, share.high))
                    for a, b in ranges
                    if b > share.low and a < share.high
                ]
            except FAILURES as error:
                self.store.fail(share.window, f"its KV could not be loaded: {type(error).__name__}: {error}")
        for group in self._groups(runs):
            self._refresh_safely(group)

    def done(self) -> None:
        """End the step."""
        self.step, self._catching = None, []

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Yield the attention layers with their names in the forward context."""
        context = self.vllm_config.compilation_config.static_forward_context
        for name, layer in context.items():
            if isinstance(getattr(layer, "kv_cache", None), torch.Tensor) and hasattr(layer, "impl"):
                yield name, layer

    def _placed(self, meta: StepMeta) -> Iterator[tuple[int, Share]]:
        """Yield the step's shares, each with the batch row at which it begins."""
        shares = {share.request: share for share in meta.shares}
        offset = 0
        for request in self.runner.input_batch.req_ids:
            if request in shares:
                yield offset, shares[request]
            offset += meta.scheduled.get(request, 0)

    def _feed(self, offset: int, share: Share, window: WindowInputs, inputs: StepInputs) -> None:
        positions, span = inputs.positions, slice(offset, offset + share.stop - share.start)
        places = window.at(share.start, share.stop).to(positions)
        positions[..., span] = places if positions.ndim == 2 else places[0]
        rows = torch.arange(share.start, share.stop)
        self._embed(window, rows, inputs.embeds[span], _cut(inputs.deepstack, span))
        for row in share.newline:
            if self.newline is not None and share.start <= row < share.stop:
                inputs.embeds[offset + row - share.start] = self.newline.to(inputs.embeds)

    @staticmethod
    def _embed(
        window: WindowInputs, rows: torch.Tensor, embeds: torch.Tensor, deep: torch.Tensor | None
    ) -> None:
        """Write the visual embeddings of ascending `rows` into `embeds` [n, hidden] and `deep` [levels, n,
        hidden]."""
        put, take = window.visual(rows)
        if not len(put):
            return
        put = put.to(embeds.device)
        embeds.index_copy_(0, put, window.embeddings[take].to(embeds))
        if deep is not None and window.deepstack is not None:
            deep.index_copy_(1, put, window.deepstack[:, take].to(deep))

    def _window_angles(self, window: WindowInputs) -> Angles:
        """Return a window's cosine and sine, float32 [rows, head_dim / 2], the same numbers as in the model's
        rotation."""
        if window.key not in self._angles:
            self._angles = {key: value for key, value in self._angles.items() if key in self.store.windows}
            self._angles[window.key] = self.angles(window.positions)
        return self._angles[window.key]

    def angles(self, positions: torch.Tensor) -> Angles:
        """Cosine and sine, float32, of positions [axes, n]: the same numbers as in the model's table."""
        assert self.model is not None
        return self.model.rotation.angles(positions)

    def _slots(self, share: Share, rows: torch.Tensor) -> torch.Tensor:
        pages = torch.tensor(share.pages, dtype=torch.int64)
        return pages[rows // self.page] * self.page + rows % self.page

    def _load(self, share: Share, window: WindowInputs) -> None:
        """Write stored rows [low, high) into the request's pages; rows without a source are refreshed."""
        origin = self.store.streams[share.held] if share.ask else self.store.parent(window)
        rows = torch.arange(share.low, share.high)
        source = rows if share.ask else window.source[rows]
        rows, source = rows[source >= 0], source[source >= 0]
        if len(source) and int(source.max()) >= origin.rows:
            raise ValueError(f"the window reuses row {int(source.max())} of {origin.rows}")
        slots = self._slots(share, rows)
        cos, sin = self._window_angles(window)
        turn = (cos[rows.to(cos.device)], sin[rows.to(sin.device)])
        for name, layer in self.layers():
            key, value = origin.layers[name]
            take, device = source.to(key.device), layer.kv_cache.device
            moved = turned(key.index_select(0, take).to(device), turn)
            layer.impl.do_kv_cache_update(
                layer, moved, value.index_select(0, take).to(device), layer.kv_cache, slots.to(device)
            )

    def _groups(
        self, runs: Sequence[tuple[Share, WindowInputs, int, int]]
    ) -> Iterator[list[tuple[Share, WindowInputs, int, int]]]:
        """Divide runs into batches that fit in the activation budget measured by vLLM; long runs are cut, in
        order."""
        limit = int(self.vllm_config.scheduler_config.max_num_batched_tokens)
        group: list[tuple[Share, WindowInputs, int, int]] = []
        size = 0
        for share, window, first, last in runs:
            for start in range(first, last, limit):
                stop = min(start + limit, last)
                if size + stop - start > limit:
                    yield group
                    group, size = [], 0
                group.append((share, window, start, stop))
                size += stop - start
        if group:
            yield group

    def _refresh_safely(self, group: Sequence[tuple[Share, WindowInputs, int, int]]) -> None:
        """Refresh a batch of ranges. If that fails, refresh each stream on its own, so that only the faulty
        stream is lost."""
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
        """Recompute runs as variable-length sequences over their requests' block tables, each row causal."""
        assert self.model is not None
        model, device = self.model, self.runner.device
        rows = [torch.arange(first, last) for *_, first, last in runs]
        counts = torch.tensor([len(part) for part in rows], dtype=torch.int32)
        total, widest = int(counts.sum()), max(-(-last // self.page) for *_, last in runs)
        ids = torch.cat([window.token_ids[part] for (_, window, *_), part in zip(runs, rows, strict=True)])
        embeds = model.embed_input_ids(ids.to(device)).clone()
        deep = embeds.new_zeros(model.deepstack, *embeds.shape) if model.deepstack else None
        positions, slots, offset = [], [], 0
        table = torch.zeros(len(runs), widest, dtype=torch.int32)
        self._catching = []
        for place, ((share, window, first, last), part) in enumerate(zip(runs, rows, strict=True)):
            span = slice(offset, offset + len(part))
            self._embed(window, part, embeds[span], _cut(deep, span))
            positions.append(window.positions[:, first:last])
            slots.append(self._slots(share, part))
            pages = share.pages[: -(-last // self.page)]
            table[place, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
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
            model.run(StepInputs(where if self.runner.uses_mrope else where[0], embeds, deep))
        self._catching = []

    def _metadata(self, common: CommonAttentionMetadata) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        metadata: dict[str, Any] = {}
        mapping: dict[str, torch.Tensor] = {}
        for groups in self.runner.attn_groups:
            for group in groups:
                # A separate builder, because the runner's may have buffers of the step that is about to run.
                builder = group.backend.get_builder_cls()(
                    group.kv_cache_spec, group.layer_names, self.vllm_config, self.runner.device
                )
                built = builder.build(0, common)
                for name in group.layer_names:
                    metadata[name], mapping[name] = built, common.slot_mapping
        return metadata, mapping

    def _catch(self, offset: int, share: Share, window: WindowInputs, device: torch.device) -> None:
        """Record the rows of a share whose KV belongs to the window; in the batch they begin at `offset`."""
        rows = torch.arange(min(share.start, window.rows), min(share.stop, window.rows))
        self._catch_rows(offset, rows, window, device)

    def _catch_rows(
        self, offset: int, rows: torch.Tensor, window: WindowInputs, device: torch.device
    ) -> None:
        if not len(rows) or not len(window.computed):
            return
        nearest = torch.searchsorted(window.computed, rows).clamp(max=len(window.computed) - 1)
        matches = window.computed[nearest] == rows
        if not bool(matches.any()):
            return
        cos, sin = self._window_angles(window)
        turned = rows[matches].to(cos.device)
        places = (torch.nonzero(matches)[:, 0] + offset).to(device)
        turn = (cos[turned], sin[turned])
        self._catching.append(_Catch(window.key, len(window.computed), places, nearest[matches], turn))

    def _caught(self, name: str, write: Any) -> Any:
        def update(
            layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor
        ) -> None:
            write(layer, key, value, kv_cache, slots)
            heads, dim = layer.num_kv_heads, layer.head_size
            for capture in self._catching:
                keys = key.view(-1, heads, dim).index_select(0, capture.rows)
                captured = self.store.captured.setdefault(capture.window, Captured())
                captured.put(
                    name,
                    capture.count,
                    capture.where,
                    turned(keys, capture.angles, back=True),
                    value.view(-1, heads, dim).index_select(0, capture.rows),
                )

        return update


def _cut(deep: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    return None if deep is None else deep[:, rows]


class WindowConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """vLLM's connector, one object per process and role. It passes calls on to the scheduler's or the
    worker's side."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.scheduler = SchedulerSide()
        self.worker = WorkerSide(vllm_config)

    def on_new_request(self, request: Any) -> None:
        """Called when a request enters the scheduler."""
        self.scheduler.new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many rows are external, and False, because they are loaded within the step."""
        return self.scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Called when a request has been given its pages."""
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
        """Return the description of a step for the workers."""
        return self.scheduler.step(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Return False: the pages are free at once, because KV that is kept is already in the store."""
        self.scheduler.finished(request)
        return False, None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Called when a step begins."""
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMeta)
        self.worker.step = connector_metadata

    def clear_connector_metadata(self) -> None:
        """Called when a step is over."""
        super().clear_connector_metadata()
        self.worker.done()

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Called before the forward pass of a step with rows to load."""
        self.worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are complete before the forward pass starts."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """Do nothing: KV is captured where it is written."""

    def wait_for_save(self) -> None:
        """Do nothing: no transfer is pending."""


class WindowWorker(BaseWorker):  # type: ignore[misc, valid-type]
    """vLLM's worker, with the connector bound to its runner, and with the calls that the engine makes to
    every rank."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up, then bind the connector to the runner."""
        out = super().compile_or_warm_up_model()
        self.lookout.bind(self.model_runner)
        return out

    @property
    def lookout(self) -> WorkerSide:
        """This rank's side of the connector."""
        connector = get_kv_transfer_group()
        assert isinstance(connector, WindowConnector)
        return connector.worker

    def lookout_newline(self, newline: torch.Tensor | None) -> None:
        """Set the model's learned newline, if it has one."""
        self.lookout.newline = newline

    def lookout_admit(self, windows: Sequence[WindowInputs]) -> None:
        """Store the inputs of windows whose requests follow."""
        for window in windows:
            self.lookout.store.windows[window.key] = window

    def lookout_commit(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Store the KV that windows computed; return the causes of failures, by the window's key."""
        causes = {key: self.lookout.store.commit(key, name) for key, name in pairs}
        return {key: cause for key, cause in causes.items() if cause is not None}

    def lookout_failures(self, keys: Sequence[str]) -> dict[str, str]:
        """Return why windows failed since the last call, by key: their KV could not be loaded, or their
        inputs were missing. Answers that they gave since then are void."""
        return self.lookout.store.failures(keys)

    def lookout_release(self, keys: Sequence[str], names: Sequence[str]) -> None:
        """Forget finished windows and free streams."""
        self.lookout.store.release(keys)
        self.lookout.store.drop(names)

    def lookout_clean(self) -> None:
        """Replace numbers in the block table that are not finite. Kernels read whole pages, so NaN in a
        masked slot would make the next window's answer NaN too."""
        for _, layer in self.lookout.layers():
            layer.kv_cache.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def lookout_memory(self) -> dict[str, int]:
        """Return the bytes of each stream's KV on this rank."""
        return {name: kv.bytes for name, kv in self.lookout.store.streams.items()}

    def lookout_stream(self, name: str) -> SavedKV:
        """Return a stream's canonical KV on this rank, for tests."""
        return self.lookout.store.streams[name]

    def lookout_rows(
        self, name: str, digest: str, begin: int, end: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return canonical K and V [layers, kv_heads, rows, head_dim] of a stream's rows on this rank, on the
        host; None if the rank has another window of the stream, or none."""
        kv = self.lookout.store.streams.get(name)
        if kv is None or kv.digest != digest:
            return None
        keys, values = (
            torch.stack([layer[part][begin:end].transpose(0, 1) for layer in kv.layers.values()]).cpu()
            for part in (0, 1)
        )
        return keys, values

    def lookout_key_bias(self) -> torch.Tensor:
        """Return the bias of every layer's key projection [layers, width] on this rank; zeros if there is
        none, or if keys are normalised after it."""
        parents = {
            id(module.attn): module
            for module in self.model_runner.get_model().modules()
            if hasattr(module, "attn")
        }
        rows = []
        for _, layer in self.lookout.layers():
            parent = parents[id(layer)]
            bias = getattr(parent.qkv_proj, "bias", None)
            if bias is None or hasattr(parent, "k_norm"):
                rows.append(torch.zeros(parent.kv_size))
            else:
                rows.append(bias.detach()[parent.q_size : parent.q_size + parent.kv_size].float().cpu())
        return torch.stack(rows)

    def lookout_tables(self) -> list[torch.Tensor]:
        """Return the block table of every layer, for tests."""
        return [layer.kv_cache for _, layer in self.lookout.layers()]

    def lookout_windows(self) -> list[str]:
        """Return the keys of the windows in progress, for tests."""
        return list(self.lookout.store.windows)

    def lookout_held(self) -> tuple[int, int]:
        """Count windows and captures in progress, for tests that check for leaks."""
        return len(self.lookout.store.windows), len(self.lookout.store.captured)
