"""LLaVA-OneVision-2 for transformers, which has no classes for it: configuration, tower and whole model.

Names of settings and weights are those that vLLM reads from a published folder
(`vllm.model_executor.models.llava_onevision2`); `tests/vllm/test_llava_onevision2.py` compares the tower with
vLLM's. No code from a folder is executed, because transformers prefers registered classes to a folder's code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from transformers.configuration_utils import PreTrainedConfig
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForImageTextToText
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model
from transformers.utils.generic import is_flash_attention_requested
from transformers.vision_utils import get_vision_position_ids

NAME: Final = "llava_onevision2"
#: parts of the rotated half of a head: rotated by time, by row and by column
AXES: Final = (4, 6, 6)


class LlavaOnevision2VisionConfig(PreTrainedConfig):  # type: ignore[misc]
    """The tower's settings, with the names and defaults that vLLM reads."""

    model_type = f"{NAME}_vision"
    base_config_key = "vision_config"

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_channels: int = 3
    image_size: int = 448
    patch_size: int = 14
    temporal_patch_size: int = 1
    spatial_merge_size: int = 2
    frame_windows_size: int = 4
    rope_theta: float = 10000.0
    layer_norm_eps: float = 1e-6
    layer_norm_type: str = "layer_norm"
    hidden_act: str = "gelu"
    use_head: bool = False
    initializer_range: float = 0.02


class LlavaOnevision2Config(PreTrainedConfig):  # type: ignore[misc]
    """The whole model's settings."""

    model_type = NAME
    sub_configs = {"vision_config": LlavaOnevision2VisionConfig, "text_config": Qwen3Config}  # noqa: RUF012

    vision_config: dict[str, Any] | PreTrainedConfig | None = None
    text_config: dict[str, Any] | PreTrainedConfig | None = None
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Turn the parts' settings into configurations."""
        for part, kind in self.sub_configs.items():
            value = getattr(self, part)
            if not isinstance(value, PreTrainedConfig):
                # The folder's `model_type` of each part belongs to its Python files, so it is dropped.
                settings = {key: setting for key, setting in (value or {}).items() if key != "model_type"}
                setattr(self, part, kind(**settings))
        super().__post_init__(**kwargs)


def angles(positions: torch.Tensor, head_dim: int, theta: float) -> torch.Tensor:
    """Return the angles of a head's entries, float32 [rows, head_dim].

    The halves repeat, although neighbouring entries are rotated together. So the two entries of a pair have
    different angles, and a row's rotation depends on its position, not only on the distance to another row.

    Args:
        positions: Time, row and column of every patch, int64 [rows, 3].
        head_dim: Entries of a head.
        theta: Base of the frequencies.
    """
    unit = head_dim // 2 // sum(AXES)
    parts = []
    for axis, share in enumerate(AXES):
        size = share * unit
        steps = torch.arange(size, dtype=torch.float32, device=positions.device) / size
        parts.append(torch.outer(positions[:, axis].float(), 1.0 / theta**steps))
    half = torch.cat(parts, -1)
    return torch.cat([half, half], -1)


def still_positions(grid_thw: torch.Tensor, merge: int) -> torch.Tensor:
    """Return time 0, row and column of the patches of pictures [n, 3], group by group, int64 [patches, 3]."""
    return functional.pad(get_vision_position_ids(grid_thw, merge), (1, 0))


def turned(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring entries of states [rows, heads, head_dim], in float32."""
    wide = states.float()
    crossed = torch.stack([-wide[..., 1::2], wide[..., 0::2]], -1).flatten(-2)
    return (wide * cos + crossed * sin).to(states.dtype)


class Attention(nn.Module):
    """Attention within sequences, for a layer of the tower."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.config, self.heads, self.is_causal = config, config.num_attention_heads, False
        self.scaling = (width // self.heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(
        self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, edges: torch.Tensor
    ) -> torch.Tensor:
        """Attend over rows [n, width]; `edges` are the sequences' boundaries, int32 [sequences + 1]."""
        query, key, value = self.qkv(rows).view(len(rows), 3, self.heads, -1).unbind(1)
        heads = [
            part.transpose(0, 1)[None] for part in (turned(query, cos, sin), turned(key, cos, sin), value)
        ]
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        if is_flash_attention_requested(self.config):
            out = attend(self, *heads, None, scaling=self.scaling, cu_seq_lens_q=edges)[0]
        else:
            lengths = edges.diff().tolist()
            pieces = zip(*(part.split(lengths, 2) for part in heads), strict=True)
            out = torch.cat([attend(self, *piece, None, scaling=self.scaling)[0] for piece in pieces], 1)
        projected: torch.Tensor = self.proj(out.reshape(len(rows), -1))
        return projected


class Mlp(nn.Module):
    """The MLP of a tower's layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute rows [n, width]."""
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(rows)))
        return out


class Layer(nn.Module):
    """A layer of the tower."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)

    def forward(
        self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, edges: torch.Tensor
    ) -> torch.Tensor:
        """Compute rows [n, width] within sequences."""
        rows = rows + self.self_attn(self.layer_norm1(rows), cos, sin, edges)
        out: torch.Tensor = rows + self.mlp(self.layer_norm2(rows))
        return out


class Embeddings(nn.Module):
    """Embeds patches."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        channels, patch = config.num_channels, config.patch_size
        self.shape = (channels, patch, patch)
        self.patch_embedding = nn.Conv2d(channels, config.hidden_size, patch, patch, bias=False)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Return rows [n, width] for normalised patches [n, channels * patch * patch]."""
        rows: torch.Tensor = self.patch_embedding(patches.view(-1, *self.shape))
        return rows.flatten(1)


class Encoder(nn.Module):
    """The tower's layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


class Merger(nn.Module):
    """Makes one token of each group of patches; a group's patches are consecutive."""

    def __init__(self, config: Any, hidden: int) -> None:
        super().__init__()
        self.group = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = nn.Sequential(nn.Linear(self.group, self.group), nn.GELU(), nn.Linear(self.group, hidden))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return tokens [groups, hidden] for rows [n, width]."""
        out: torch.Tensor = self.mlp(self.ln_q(rows).view(-1, self.group))
        return out


class _Model(PreTrainedModel):  # type: ignore[misc]
    """What all models here have in common."""

    config_class = LlavaOnevision2Config
    base_model_prefix = "model"
    _no_split_modules = ["Layer", "Qwen3DecoderLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True


class LlavaOnevision2VisionModel(_Model):
    """The tower: no class token, positions in three axes, attention within windows of frames."""

    config_class = LlavaOnevision2VisionConfig

    def __init__(self, config: Any, hidden: int) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layernorm_pre = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.encoder = Encoder(config)
        self.merger = Merger(config, hidden)
        self.post_init()

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        return self.encoder.layers

    def forward(
        self,
        pixel_values: torch.Tensor,
        grid_thw: torch.Tensor,
        position_ids: torch.Tensor,
        cu_seqlens: torch.Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPooling:
        """Encode patches into tokens (`pooler_output`, [groups, hidden]).

        Args:
            pixel_values: Normalised patches, [patches, 3 * patch * patch]; a group's patches are consecutive.
            grid_thw: Frames or canvases, patch rows and patch columns of every video, int64 [videos, 3].
            position_ids: Time, row and column of every patch, int64 [patches, 3].
            cu_seqlens: Boundaries of the sequences within which patches attend, int32 [sequences + 1]; None:
                windows of `frame_windows_size` frames.
        """
        config = self.config
        rows = self.layernorm_pre(self.embeddings(pixel_values))
        turn = angles(position_ids, config.hidden_size // config.num_attention_heads, config.rope_theta)
        cos, sin = turn.cos()[:, None], turn.sin()[:, None]
        edges = self._windows(grid_thw) if cu_seqlens is None else cu_seqlens
        for layer in self.blocks:
            rows = layer(rows, cos, sin, edges)
        return BaseModelOutputWithPooling(last_hidden_state=rows, pooler_output=self.merger(rows))

    def _windows(self, grid_thw: torch.Tensor) -> torch.Tensor:
        size = self.config.frame_windows_size
        lengths = [
            min(size, frames - first) * height * width
            for frames, height, width in grid_thw.tolist()
            for first in range(0, frames, size)
        ]
        return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


class LlavaOnevision2Model(_Model):
    """The tower and the language model."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.visual = LlavaOnevision2VisionModel(config.vision_config, config.text_config.hidden_size)
        self.language_model = Qwen3Model._from_config(config.text_config)
        self.post_init()


class LlavaOnevision2ForConditionalGeneration(_Model):
    """The whole model."""

    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        text = config.text_config
        self.model = LlavaOnevision2Model(config)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        patch_positions: torch.Tensor | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Return a prompt's logits [batch, rows, vocabulary]; names are as in vLLM and the processor."""
        embeds = self.model.language_model.embed_tokens(input_ids)
        if pixel_values is not None:
            tokens = self.model.visual(pixel_values, image_grid_thw, patch_positions).pooler_output
            visual = (input_ids == self.config.image_token_id)[..., None]
            embeds = embeds.masked_scatter(visual, tokens.to(embeds.dtype))
        out = self.model.language_model(inputs_embeds=embeds, attention_mask=attention_mask, **options)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state))


@cache
def register() -> None:
    """Register the classes with transformers in this process."""
    AutoConfig.register(NAME, LlavaOnevision2Config)
    AutoModel.register(LlavaOnevision2Config, LlavaOnevision2Model)
    AutoModelForImageTextToText.register(LlavaOnevision2Config, LlavaOnevision2ForConditionalGeneration)
    # vLLM also accepts the language model directly under `model.`, and the tower without that prefix.
    register_checkpoint_conversion_mapping(
        NAME,
        [
            WeightRenaming(r"^visual\.", "model.visual."),
            WeightRenaming(r"^model\.(embed_tokens|layers|norm)\.", r"model.language_model.\1."),
        ],
    )
