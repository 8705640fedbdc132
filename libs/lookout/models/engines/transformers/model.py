"""The language model of a stock checkpoint: its decoder layers, embeddings, rotation and head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lookout.models import ModelError
from lookout.models.completeness import check_loaded
from lookout.models.engines.types import UnsupportedModelError
from lookout.models.families import family_of, read_config
from lookout.models.flops import DecoderShape, linear_weights
from lookout.models.windows import NEWLINE, Rotary, WindowError


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """The stock modules that a window needs. `linear` is the number of weights in one layer's projections and
    MLP."""

    layers: nn.ModuleList
    embedding: nn.Embedding
    norm: nn.Module
    head: nn.Linear
    newline: torch.Tensor | None
    rotary: Rotary
    family: str
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    linear: int
    limit: int
    deepstack: int
    config: Any

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, embeddings and KV."""
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    @property
    def shape(self) -> DecoderShape:
        """The dimensions on which costs depend."""
        return DecoderShape(
            layers=len(self.layers),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden=self.hidden,
            linear=self.linear,
        )

    @property
    def row_bytes(self) -> int:
        """KV bytes of one row over all layers."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * self.dtype.itemsize

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings [n, hidden] of int64 ids [n]. `NEWLINE` gives the learned newline; the caller
        fills in the rows of other negative ids."""
        out: torch.Tensor = self.embedding(ids.clamp(min=0))
        if self.newline is not None:
            out = torch.where((ids == NEWLINE)[:, None], self.newline.to(out.dtype), out)
        return out


def load_language_model(checkpoint: Path | str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """Load the language half of a checkpoint folder with the stock classes; drop the vision half.

    Raises:
        UnsupportedModelError: Plans do not support the family, attention kind or rotation, or the folder
            lacks weights.
    """
    from transformers import AutoModelForImageTextToText

    from lookout.models.vision.quiet import quiet_loading

    folder = Path(checkpoint)
    try:
        family = str(read_config(folder)["model_type"])
    except WindowError as error:
        raise UnsupportedModelError(str(error)) from error
    family_of(family).register()
    with quiet_loading():
        full_model, report = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    try:
        check_loaded(folder, report["missing_keys"], full_model.named_parameters())
    except ModelError as error:
        raise UnsupportedModelError(str(error)) from error
    return take_language_model(full_model, family, device)


def take_language_model(whole: Any, family: str, device: torch.device) -> LanguageModel:
    """Take the language half of a loaded stock model.

    Raises:
        UnsupportedModelError: Plans do not support the model's attention kind or rotation.
    """
    record = family_of(family)
    text = getattr(whole.model, record.language_model)
    config = text.config
    _check(config, text, family)
    parameters = dict(config.rope_parameters)
    newline = whole.model.image_newline if record.prompt.newline else None
    text.to(device).eval().requires_grad_(False)
    head = whole.lm_head.to(device).requires_grad_(False)
    rotary = Rotary.of(
        text.rotary_emb.inv_freq.to(device),
        parameters.get("mrope_section"),
        record.interleaved,
        float(text.rotary_emb.attention_scaling),
    )
    layer = text.layers[0]
    heads = int(config.num_attention_heads)
    return LanguageModel(
        layers=text.layers,
        embedding=text.embed_tokens,
        norm=text.norm,
        head=head,
        newline=None if newline is None else newline.detach().to(device),
        rotary=rotary,
        family=family,
        heads=heads,
        kv_heads=int(config.num_key_value_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        hidden=int(config.hidden_size),
        linear=linear_weights([layer]),
        limit=int(config.max_position_embeddings),
        deepstack=record.deepstack(whole.config.vision_config),
        config=config,
    )


def _check(config: Any, text: Any, family: str) -> None:
    name = f"{family} with a {config.model_type} language model"
    known = family_of(family).text_models
    if config.model_type not in known:
        raise UnsupportedModelError(f"{name}: this engine runs only {', '.join(known)}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UnsupportedModelError(f"{name}: layers of {sorted(kinds)}; window plans need full attention")
    rotation = text.rotary_emb.rope_type
    if rotation not in ("default", "linear", "dynamic", "llama3", "yarn"):
        raise UnsupportedModelError(f"{name}: rotation {rotation!r} depends on more than the position")
