"""The bias of a model's keys, which a memory needs."""

from __future__ import annotations

from typing import Any

import torch

from lookout.models.engines.transformers.model import LanguageModel


def key_bias(model: LanguageModel) -> torch.Tensor:
    """Return the bias of every layer's key projection [layers, width]; zeros if the model has no such bias or
    normalises its keys."""
    rows = []
    for layer in model.layers:
        attention: Any = layer.self_attn
        bias = getattr(attention.k_proj, "bias", None)
        normed = hasattr(attention, "k_norm")
        width = model.kv_heads * model.head_dim
        rows.append(torch.zeros(width) if bias is None or normed else bias.detach().cpu())
    return torch.stack(rows)
