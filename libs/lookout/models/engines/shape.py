"""The dimensions of a checkpoint's language model, read without loading it; the vLLM engine needs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lookout.models.engines.types import UnsupportedModelError
from lookout.models.families import family_of, read_config
from lookout.models.flops import DecoderShape
from lookout.models.windows import WindowError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(DecoderShape):
    """The dimensions of a checkpoint's language model.

    Attributes:
        family: Name of the model's family.
        limit: Number of positions.
        deepstack: Number of first layers to which visual features are added (DeepStack).
        itemsize: Bytes of one number of KV.
        dtype: Name of the data type.
    """

    family: str
    limit: int
    deepstack: int
    itemsize: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """KV bytes of one row over all layers."""
        return self.row_numbers * self.itemsize


def read_shape(folder: Path, dtype: str) -> ModelShape:
    """Read the dimensions of a checkpoint's language model.

    Raises:
        UnsupportedModelError: Window plans do not support the model.
    """
    from transformers import AutoConfig

    try:
        family = family_of(read_config(folder)["model_type"])
    except WindowError as error:
        raise UnsupportedModelError(str(error)) from error
    family.register()
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    text = config.get_text_config()
    if text.model_type not in family.text_models:
        raise UnsupportedModelError(
            f"{family.name} with a {text.model_type} language model: the vLLM engine runs only "
            + ", ".join(family.text_models)
        )
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UnsupportedModelError(
            f"{family.name}: layers of {sorted(kinds)}; window plans need full attention"
        )
    heads, kv_heads, hidden = text.num_attention_heads, text.num_key_value_heads, text.hidden_size
    head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    return ModelShape(
        family=family.name,
        layers=int(text.num_hidden_layers),
        heads=int(heads),
        kv_heads=int(kv_heads),
        head_dim=head_dim,
        hidden=int(hidden),
        linear=int(attention + 3 * hidden * text.intermediate_size),
        limit=int(text.max_position_embeddings),
        deepstack=family.deepstack(config.vision_config),
        itemsize=torch.empty(0, dtype=getattr(torch, dtype)).element_size(),
        dtype=dtype,
    )
