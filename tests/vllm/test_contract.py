"""What `internals` takes from vLLM. When the pinned version moves, the failing line names what broke."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"

# object -> parameters that are passed to it by name or by place.
CALLS: dict[str, tuple[str, ...]] = {
    f"{CONNECTOR}.__init__": ("vllm_config", "role", "kv_cache_config"),
    f"{CONNECTOR}.on_new_request": ("request",),
    f"{CONNECTOR}.get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    f"{CONNECTOR}.update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    f"{CONNECTOR}.build_connector_meta": ("scheduler_output",),
    f"{CONNECTOR}.request_finished": ("request", "block_ids"),
    f"{CONNECTOR}.bind_connector_metadata": ("connector_metadata",),
    f"{CONNECTOR}.clear_connector_metadata": (),
    f"{CONNECTOR}.start_load_kv": ("forward_context",),
    f"{CONNECTOR}.wait_for_layer_load": ("layer_name",),
    f"{CONNECTOR}.save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    f"{CONNECTOR}.wait_for_save": (),
    f"{RUNNER}.get_model": (),
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl.do_kv_cache_update": (
        "layer",
        "key",
        "value",
        "kv_cache",
        "slot_mapping",
    ),
    "vllm.v1.attention.backend:AttentionMetadataBuilder.__init__": (
        "kv_cache_spec",
        "layer_names",
        "vllm_config",
        "device",
    ),
    "vllm.v1.attention.backend:AttentionMetadataBuilder.build": ("common_prefix_len", "common_attn_metadata"),
    "vllm.forward_context:set_forward_context": (
        "attn_metadata",
        "vllm_config",
        "num_tokens",
        "slot_mapping",
        "skip_compiled",
    ),
    "vllm.model_executor.models.utils:init_vllm_registered_model": (
        "vllm_config",
        "prefix",
        "hf_config",
        "architectures",
    ),
    "vllm.model_executor.models.utils:AutoWeightsLoader.load_weights": ("weights",),
    "vllm.config:VllmConfig.with_hf_config": ("hf_config", "architectures"),
    "vllm.model_executor.models.qwen2:Qwen2Model.forward": (
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
    ),
    "vllm.model_executor.models.qwen3_vl:Qwen3LLMModel.forward": (
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
        "deepstack_input_embeds",
    ),
    "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model": (),
    "vllm:LLM.collective_rpc": ("method", "args"),
    "vllm:LLM.generate": ("prompts", "sampling_params", "use_tqdm"),
    "vllm.v1.engine.llm_engine:LLMEngine.abort_request": ("request_ids", "internal"),
}
# dataclass or message -> fields that are read or written.
FIELDS: dict[str, tuple[str, ...]] = {
    "vllm.v1.attention.backend:CommonAttentionMetadata": (
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu_upper_bound",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
        "causal",
        "positions",
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("req_id", "block_ids", "num_computed_tokens"),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "req_ids",
        "resumed_req_ids",
        "new_block_ids",
        "num_computed_tokens",
    ),
    "vllm.v1.worker.utils:AttentionGroup": ("backend", "layer_names", "kv_cache_spec"),
    "vllm:SamplingParams": (
        "max_tokens",
        "temperature",
        "detokenize",
        "ignore_eos",
        "stop_token_ids",
        "logprob_token_ids",
        "extra_args",
        "structured_outputs",
    ),
    "vllm.sampling_params:StructuredOutputsParams": ("json",),
    "vllm.engine.arg_utils:EngineArgs": (
        "worker_cls",
        "hf_overrides",
        "kv_transfer_config",
        "kv_cache_memory_bytes",
        "logprobs_mode",
        "enforce_eager",
        "max_num_batched_tokens",
        "block_size",
    ),
}
# module or class -> words its source must hold: attributes that exist only on instances, and the order of
# a step.
SOURCES: dict[str, tuple[str, ...]] = {
    RUNNER: (
        "self.input_batch.req_ids",
        "self.attn_groups",
        "self.uses_mrope",
        "num_scheduled_tokens[i] for i in req_ids",
    ),
    "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin": (
        "bind_connector_metadata",
        "clear_connector_metadata",
        "has_sync_kv_loads",
        "start_load_kv(get_forward_context())",
        "wait_for_save",
    ),
    "vllm.model_executor.layers.attention.attention:unified_kv_cache_update": (
        "attn_layer.impl.do_kv_cache_update(",
    ),
    # A float32 table stays one for float32 queries, on every platform.
    "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbeddingBase._match_cos_sin_cache_dtype": (
        "self.cos_sin_cache.dtype == query.dtype",
    ),
    "vllm.model_executor.layers.rotary_embedding.mrope:MRotaryEmbedding": (
        "_match_cos_sin_cache_dtype(query)",
        "mrope_section",
        "mrope_interleaved",
    ),
    # Captured graphs replay addresses, hence the input buffers.
    "vllm.compilation.cuda_graph:CUDAGraphWrapper": (
        "x.data_ptr() for x in args if isinstance(x, torch.Tensor)",
        "entry.cudagraph.replay()",
    ),
}


def found(path: str) -> Any:
    module, _, names = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in names.split("."):
        assert hasattr(value, name), f"{path} is gone: {name} is missing"
        value = getattr(value, name)
    return value


def test_the_installed_version_is_the_pinned_one() -> None:
    from lookout.models.engines.vllm import internals

    assert internals.installed_version() == internals.VERSION


def test_only_the_four_files_of_internals_import_vllm() -> None:
    from pathlib import Path

    import lookout

    folder = Path(lookout.__file__).parent
    touching = {
        str(path.relative_to(folder / "models/engines/vllm"))
        for path in folder.rglob("*.py")
        if any(
            line.strip().startswith(("import vllm", "from vllm")) for line in path.read_text().splitlines()
        )
    }
    assert touching == {f"internals/{name}.py" for name in ("model", "scheduler", "worker", "backend")}


@pytest.mark.parametrize("path", CALLS)
def test_what_is_called_takes_what_is_passed(path: str) -> None:
    parameters = inspect.signature(found(path)).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in CALLS[path] if name not in parameters and not open_ended]
    assert not missing, f"{path} no longer takes {missing}: it takes {list(parameters)}"


@pytest.mark.parametrize("path", FIELDS)
def test_messages_have_the_fields_that_are_read(path: str) -> None:
    kind = found(path)
    known = set(getattr(kind, "__annotations__", {})) | set(dir(kind))
    for base in kind.__mro__:
        known |= set(getattr(base, "__annotations__", {}))
    missing = [name for name in FIELDS[path] if name not in known]
    assert not missing, f"{path} has lost {missing}"


@pytest.mark.parametrize("path", SOURCES)
def test_sources_still_do_what_the_engine_leans_on(path: str) -> None:
    text = inspect.getsource(found(path))
    missing = [words for words in SOURCES[path] if words not in text]
    assert not missing, (
        f"{path}: {missing} not found in its source; read the steps in internals/__init__.py against it"
    )


def test_every_language_model_is_registered() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    from lookout.models.engines.vllm import internals
    from lookout.models.families import FAMILIES

    known = set(ModelRegistry.get_supported_archs())
    wanted = {text.architecture for family in FAMILIES.values() for text in family.text_models.values()}
    assert wanted | {internals.ARCHITECTURE} <= known


@pytest.mark.parametrize(
    ("name", "new"),
    [
        (
            "model.language_model.layers.0.mlp.up_proj.weight",
            "language_model.model.layers.0.mlp.up_proj.weight",
        ),
        (
            "language_model.model.layers.0.mlp.up_proj.weight",
            "language_model.model.layers.0.mlp.up_proj.weight",
        ),
        ("model.layers.0.mlp.up_proj.weight", "language_model.model.layers.0.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "language_model.lm_head.weight"),
        ("lm_head.weight", "language_model.lm_head.weight"),
        ("model.language_model.norm.weight", "language_model.model.norm.weight"),
        ("visual.blocks.0.norm1.weight", None),
        ("model.visual.merger.ln_q.weight", None),
        ("vision_tower.encoder.layer.0.lambda_1", None),
        ("model.multi_modal_projector.linear_1.weight", None),
        ("model.image_newline", None),
        ("model.text_model.norm.weight", "language_model.model.norm.weight"),
        ("model.vision_model.post_layernorm.weight", None),
        ("model.connector.modality_projection.proj.weight", None),
    ],
)
def test_published_and_saved_weight_names(name: str, new: str | None) -> None:
    from lookout.models.engines.vllm import internals

    assert internals.renamed(name) == new
