"""The language half of a stock checkpoint as a vLLM model, which takes its inputs from window plans."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import AutoWeightsLoader, init_vllm_registered_model, maybe_prefix
from vllm.sequence import IntermediateTensors

from lookout.models.completeness import check_finite_weight, check_loaded
from lookout.models.families import family_of
from lookout.models.windows import Rotary

ARCHITECTURE = "LookoutWindowModel"
VISION = (
    "visual.",
    "vision_tower.",
    "multi_modal_projector.",
    "image_newline",
    "mlp1.",
    "vision_model.",
    "connector.",
)
AGREE = 0.02
"""Largest difference between the model's cosines and ours that is accepted: float32 angles and a bfloat16
table cause that much."""


def renamed(name: str) -> str | None:
    """Return the name that `WindowModel` uses for a checkpoint's weight, as published or as saved by
    transformers; None for weights of the vision half."""
    bare = name.removeprefix("model.")
    if bare.startswith(VISION):
        return None
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    if bare.startswith("language_model.lm_head."):
        return bare
    core = bare.removeprefix("language_model.").removeprefix("text_model.").removeprefix("model.")
    return f"language_model.model.{core}"


def missing_weights(
    expected: Iterable[str], names: Collection[str], packed: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the weights that a model needs but a checkpoint lacks, by the model's names.

    Args:
        expected: The model's parameters.
        names: The checkpoint's weights, as the model names them.
        packed: The parts of the model's packed layers, such as `q_proj`, `k_proj` and `v_proj` of `qkv_proj`.
            A checkpoint may have the packed layer instead of its parts.
    """
    missing = []
    for name in set(expected) - set(names):
        layer = next((word for word in name.split(".") if word in packed), None)
        parts = [_in_place(name, layer, part) for part in packed[layer]] if layer else [name]
        missing += [part for part in parts if part not in names]
    return missing


def _in_place(name: str, layer: str, part: str) -> str:
    return ".".join(part if word == layer else word for word in name.split("."))


def rotation_of(text: Any, interleaved: bool) -> Rotary:
    """Return the rotation of a text configuration as transformers computes it, with angles in float64.
    `interleaved`: whether its axes alternate over the frequencies."""
    parameters = dict(text.rope_parameters)
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        inv_freq, scaling = 1.0 / parameters["rope_theta"] ** (torch.arange(0, size, 2).float() / size), 1.0
    else:
        inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](text, torch.device("cpu"))
    return Rotary.of(
        inv_freq.cpu(),
        parameters.get("mrope_section"),
        interleaved,
        float(scaling),
    )


class WideRotary(nn.Module):
    """vLLM's rotation in float32 with float64 angles, whatever the model's dtype.

    Keys are un-rotated when they are stored and rotated again in every window, so the table must not be
    rounded to bfloat16.

    Args:
        inner: vLLM's rotary module; its table is replaced.
        rotation: The same rotation.

    Raises:
        ValueError: The two differ.
    """

    def __init__(self, inner: Any, rotation: Rotary) -> None:
        super().__init__()
        self.inner = inner
        old = inner.cos_sin_cache
        # One axis: the sections of an M-RoPE choose rows of this table.
        places = torch.arange(old.shape[0], dtype=torch.float64)[:, None] * rotation.inv_freq.cpu()
        table = torch.cat([places.cos(), places.sin()], -1).mul_(rotation.scaling).float()
        near = slice(0, 4096)
        apart = float((old[near].float().cpu() - table[near]).abs().max())
        if apart > AGREE:
            raise ValueError(f"vLLM's rotation differs from the checkpoint's by {apart:.3f}")
        inner.cos_sin_cache = table.to(old.device)

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotated queries and keys, in their dtype."""
        turned, placed = self.inner(positions, query.float(), key.float())
        return turned.to(query.dtype), placed.to(key.dtype)


@dataclass(slots=True, eq=False)
class StepInputs:
    """The inputs of a forward pass: positions [n] or [3, n], embeddings [n, hidden], DeepStack [levels, n,
    hidden]."""

    positions: torch.Tensor
    embeds: torch.Tensor
    deepstack: torch.Tensor | None


class InputBuffers(nn.Module):
    """Buffers for the inputs of every step, at constant addresses and as large as the largest step.

    Args:
        rows: Rows of the largest step.
        hidden: Width of an embedding.
        levels: DeepStack levels.
        dtype: Dtype of embeddings.
    """

    positions: torch.Tensor
    embeds: torch.Tensor
    deepstack: torch.Tensor

    def __init__(self, rows: int, hidden: int, levels: int, dtype: torch.dtype) -> None:
        super().__init__()
        # One place more than a step has, because compiled layers are traced with the largest step and keep
        # its strides: a view of the three axes must not be contiguous in the largest step and strided in a
        # smaller one.
        self.register_buffer("positions", torch.zeros(3, rows + 1, dtype=torch.int64), persistent=False)
        self.register_buffer("embeds", torch.zeros(rows, hidden, dtype=dtype), persistent=False)
        self.register_buffer("deepstack", torch.zeros(levels, rows, hidden, dtype=dtype), persistent=False)

    @classmethod
    def of(cls, config: VllmConfig, levels: int) -> InputBuffers:
        """Allocate buffers for a model's configuration."""
        model = config.model_config
        rows = int(config.scheduler_config.max_num_batched_tokens)
        return cls(rows, int(model.get_hidden_size()), levels, model.dtype)

    def take(self, positions: torch.Tensor, embeds: torch.Tensor) -> StepInputs:
        """Copy a step's positions and embeddings into the buffers and return views of them; DeepStack is
        zero."""
        count = embeds.shape[0]
        where = self.positions[:, :count] if positions.ndim == 2 else self.positions[0, :count]
        where.copy_(positions)
        self.embeds[:count].copy_(embeds)
        deep = self.deepstack[:, :count].zero_() if len(self.deepstack) else None
        return StepInputs(where, self.embeds[:count], deep)


class WindowModel(nn.Module, SupportsMRoPE):  # type: ignore[misc]
    """The language half of a stock checkpoint, fed with a plan's positions and the blocks' embeddings."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        full_config = vllm_config.model_config.hf_config
        text, family = full_config.get_text_config(), family_of(full_config.model_type)
        self.config = text
        self.checkpoint = Path(vllm_config.model_config.model)
        inner = maybe_prefix(prefix, "language_model")
        listed = family.text_models[text.model_type]
        if listed.module:
            own = vllm_config.with_hf_config(text, architectures=[listed.architecture])
            kind = getattr(importlib.import_module(listed.module), listed.name)
            self.language_model: Any = kind(vllm_config=own, prefix=inner)
        else:
            self.language_model = init_vllm_registered_model(
                vllm_config, prefix=inner, hf_config=text, architectures=[listed.architecture]
            )
        self.deepstack = family.deepstack(full_config.vision_config)
        self.rotation = rotation_of(text, family.interleaved)
        self._widen()
        self.inputs = InputBuffers.of(vllm_config, self.deepstack)
        self.feed: Callable[[StepInputs], None] | None = None

    def _widen(self) -> None:
        """Give every layer the same rotation, in float32."""
        layers = self.language_model.model.layers
        wide = WideRotary(layers[0].self_attn.rotary_emb, self.rotation)
        for layer in layers:
            layer.self_attn.rotary_emb = wide

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return token embeddings [n, hidden]."""
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
        """Run the forward pass that vLLM's runner calls. For windows, `feed` replaces the runner's positions
        and embeddings.

        The layers use the same buffers in every step, because captured CUDA graphs replay fixed addresses.
        """
        assert input_ids is not None
        inputs = self.inputs.take(positions, self.embed_input_ids(input_ids))
        if self.feed is not None:
            self.feed(inputs)
        return self.run(inputs)

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Run the decoder layers on rows with explicit positions and embeddings; return the last states [n,
        hidden]."""
        levels: list[IntermediateTensors] = []
        if inputs.deepstack is not None:
            named = {f"deepstack_input_embeds_{i}": level for i, level in enumerate(inputs.deepstack)}
            levels.append(IntermediateTensors(named))
        out: torch.Tensor = self.language_model.model(None, inputs.positions, None, inputs.embeds, *levels)
        return out

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return logits [n, vocabulary]."""
        out: torch.Tensor | None = self.language_model.compute_logits(hidden_states)
        return out

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: Sequence[Any]
    ) -> tuple[torch.Tensor, int]:
        """Return placeholders; in every step of a window, the plan's positions replace them."""
        return torch.arange(len(input_tokens)).expand(3, -1).clone(), 0

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the language half of the checkpoint's weights.

        Raises:
            ModelError: A weight is missing, or has a number that is not finite.
        """
        tied = "language_model.lm_head." if self.config.tie_word_embeddings else " "
        names: set[str] = set()

        def language_weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if (new := renamed(name)) is not None and not new.startswith(tied):
                    names.add(new)
                    check_finite_weight(self.checkpoint, name, weight)
                    yield new, weight

        loaded: set[str] = AutoWeightsLoader(self).load_weights(language_weights())
        # vLLM's check counts every linear layer as loaded, and a packed one if any of its parts is.
        packed: Mapping[str, Sequence[str]] = getattr(self.language_model, "packed_modules_mapping", {})
        expected = [name for name, _ in self.named_parameters() if name.endswith((".weight", ".bias"))]
        check_loaded(self.checkpoint, missing_weights(expected, names, packed))
        return loaded


def register() -> None:
    """Register `WindowModel` with vLLM in this process; idempotent."""
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # Register the class, not its name: vLLM would import a named class again, in a separate process.
        ModelRegistry.register_model(ARCHITECTURE, WindowModel)


register()
