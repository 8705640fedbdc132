"""The tiny model in a second architecture, Qwen2.5-VL's: windowed attention, pairs of frames, M-RoPE.

The language model and its words are those of the InternVL in :mod:`watchbench.model`. The tower begins with
the weights of that model's eye that have a counterpart, and learns the rest from it
(:mod:`watchbench.distil`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from watchbench.shape import Shape

SIZE, PATCH, MERGE, PAIR, WINDOW = 112, 14, 2, 2, 56
CELLS = SIZE // PATCH // MERGE
SECTIONS = [4, 6, 6]  # of a head's 16 rotations: time, row, column; shares as published (16, 24, 24)
TICKS = 2  # of the time axis a second, as published
# Tokens of the same ids as InternVL's.
NAMES = {
    "<img>": "<|vision_start|>",
    "</img>": "<|vision_end|>",
    "<IMG_CONTEXT>": "<|image_pad|>",
    "<video>": "<|video_pad|>",
}


def build(s: Shape, text: dict[str, Any], table: dict[str, int]) -> Any:
    """Build an untrained model of the stock class; ``text``: the language model's configuration, ``table``:
    ids."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids = {name: table[own] for own, name in NAMES.items()}
    depth = s.vision_layers
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": depth,
            "hidden_size": s.vision,
            "intermediate_size": 3 * s.vision,
            "num_heads": s.vision // 32,
            "out_hidden_size": s.text,
            # Every second layer sees the whole picture; the others four quarters of it.
            "fullatt_block_indexes": list(range(1, depth, 2)),
            "window_size": WINDOW,
            "patch_size": PATCH,
            "image_size": SIZE,  # what Lookout gives to the tower, which takes any size
            "spatial_merge_size": MERGE,
            "temporal_patch_size": PAIR,
            "tokens_per_second": TICKS,
        },
        text_config=text
        | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": SECTIONS},
            "rms_norm_eps": 1e-6,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def paired(pixels: Tensor) -> Tensor:
    """Frames [T, ...] as pairs [T / 2, 2, ...]; a lone last frame is repeated, as the product does."""
    if len(pixels) % PAIR:
        pixels = torch.cat([pixels, pixels[-1:]])
    return pixels.view(-1, PAIR, *pixels.shape[1:])


def _patches(normal: Tensor) -> Tensor:
    """Cut pairs [N, 2, 3, 112, 112] into patches [N, 64, 3 * 2 * 14 * 14], group after group."""
    cut = normal.view(-1, PAIR, 3, CELLS, MERGE, PATCH, CELLS, MERGE, PATCH)
    return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(len(normal), CELLS**2 * MERGE**2, -1)


def _together(keep: Tensor | None, count: int, windowed: bool) -> Tensor | None:
    """Which patches see which, bool [N or 1, 1, 64, 64]; None: all.

    A dropped patch sees itself, so that no row of the softmax is empty.
    """
    if keep is None and not windowed:
        return None
    unit = MERGE**2
    group = torch.arange(CELLS**2).repeat_interleave(unit)
    side = WINDOW // PATCH // MERGE
    window = group // CELLS // side * CELLS + group % CELLS // side
    seen = torch.ones(1, count, count, dtype=torch.bool)
    if windowed:
        seen = (window[:, None] == window[None])[None]
    if keep is not None:
        seen = seen & keep.repeat_interleave(unit, 1)[:, None]
    return (seen | torch.eye(count, dtype=torch.bool))[:, None]


def see(tower: Any, normal: Tensor, keep: Tensor | None = None) -> Tensor:
    """Tokens [N, 16, hidden] of normalised pairs [N, 2, 3, 112, 112].

    ``keep`` bool [N, 16]: groups that are encoded; rows of the others are meaningless.
    """
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
    from transformers.vision_utils import get_vision_position_ids

    embed = tower.patch_embed.proj.weight.flatten(1)
    h = functional.linear(_patches(normal), embed)
    grid = torch.tensor([[1, SIZE // PATCH, SIZE // PATCH]], device=h.device)
    cos, sin = tower.rotary_pos_emb(h, get_vision_position_ids(grid, MERGE).to(h.device))
    masks = {flag: _together(keep, h.shape[1], flag) for flag in (False, True)}
    for number, block in enumerate(tower.blocks):
        attn = block.attn
        q, k, v = attn.qkv(block.norm1(h)).unflatten(-1, (3, attn.num_heads, -1)).unbind(2)
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
        mask = masks[number not in tower.fullatt_block_indexes]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attn.scaling)
        h = h + attn.proj(out.transpose(1, 2).flatten(2))
        h = h + block.mlp(block.norm2(h))
    return tower.merger(h).unflatten(0, (len(h), -1))  # type: ignore[no-any-return]


def _centred(weight: Tensor) -> Tensor:
    """The output weights of a layer less their mean over the width, which makes RMSNorm of the output
    LayerNorm."""
    return weight - weight.mean(0, keepdim=True)


@torch.no_grad()
def transplant(old: Any, new: Any) -> None:
    """Copy into ``new`` the language model of ``old`` (InternVL's) and the parts of its eye that have a
    counterpart.

    LayerNorm becomes RMSNorm of a centred stream, and GELU becomes x * sigmoid(1.702 x). Position embeddings,
    the class token and attention outside a window have no counterpart.
    """
    new.model.language_model.load_state_dict(old.model.language_model.state_dict())
    tower, eye = new.model.visual, old.model.vision_tower
    patch = eye.embeddings.patch_embeddings.projection
    # Either frame of a pair gives half.
    tower.patch_embed.proj.weight.copy_(
        _centred(patch.weight)[:, :, None].expand(-1, -1, PAIR, -1, -1) / PAIR
    )
    for block, layer in zip(tower.blocks, eye.encoder.layer, strict=True):
        _transplant_layer(layer, block)
    # What InternVL adds to every patch has no place of its own in front of the first layer.
    places = eye.embeddings.position_embeddings[0, 1:].mean(0)
    tower.blocks[0].attn.proj.bias += _centred(patch.bias + places)
    _transplant_merger(old, tower.merger)


def _linear(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The linear layer after a LayerNorm, changed to follow a normalisation without weight and bias."""
    own = weight @ norm.bias
    return weight * norm.weight, own if bias is None else own + bias


def _transplant_layer(layer: Any, block: Any) -> None:
    attn = layer.attention
    for norm in (block.norm1, block.norm2):
        norm.weight.fill_(1.0)
    parts = [
        _linear(layer.layernorm_before, part.weight, part.bias)
        for part in (attn.q_proj, attn.k_proj, attn.v_proj)
    ]
    block.attn.qkv.weight.copy_(torch.cat([weight for weight, _ in parts]))
    block.attn.qkv.bias.copy_(torch.cat([bias for _, bias in parts]))
    out = attn.projection_layer
    block.attn.proj.weight.copy_(_centred(layer.lambda_1[:, None] * out.weight))
    block.attn.proj.bias.copy_(_centred(layer.lambda_1 * out.bias))
    weight, bias = _linear(layer.layernorm_after, layer.mlp.fc1.weight, layer.mlp.fc1.bias)
    block.mlp.gate_proj.weight.copy_(1.702 * weight)
    block.mlp.gate_proj.bias.copy_(1.702 * bias)
    block.mlp.up_proj.weight.zero_()
    block.mlp.up_proj.bias.fill_(1 / 1.702)
    block.mlp.down_proj.weight.copy_(_centred(layer.lambda_2[:, None] * layer.mlp.fc2.weight))
    block.mlp.down_proj.bias.copy_(_centred(layer.lambda_2 * layer.mlp.fc2.bias))


def _transplant_merger(old: Any, merger: Any) -> None:
    """Copy the projector into the merger, which normalises each patch of a group, not the whole group."""
    projector, side, width = old.model.multi_modal_projector, SIZE // PATCH, merger.ln_q.weight.numel()
    # Where pixel shuffle puts the patches of a group, and their channels.
    numbers = torch.arange(side * side * width, dtype=torch.float32).view(1, side, side, width)
    shuffled = old.model.pixel_shuffle(numbers, scale_factor=0.5).reshape(CELLS**2, -1)[0].long()
    patch, channel = shuffled // width, shuffled % width
    place = patch // side * MERGE + patch % side
    weight, bias = _linear(projector.layer_norm, projector.linear_1.weight, projector.linear_1.bias)
    rows, first, last = len(weight), merger.mlp[0], merger.mlp[2]
    first.weight[:rows, place * width + channel] = weight
    first.bias.zero_()
    first.bias[:rows] = bias
    merger.ln_q.weight.fill_(1.0)
    last.weight.zero_()  # what the others learn begins with nothing
    last.weight[:, :rows] = projector.linear_2.weight
    last.bias.copy_(projector.linear_2.bias)


def save_processors(folder: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Write the files that the stock processors read."""
    side = (MERGE * PATCH) ** 2
    image: dict[str, object] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "temporal_patch_size": PAIR,
        "merge_size": MERGE,
        "size": {"shortest_edge": 4 * side, "longest_edge": CELLS**2 * side},
        "image_mean": list(mean),
        "image_std": list(std),
        "processor_class": "Qwen2_5_VLProcessor",
    }
    video = image | {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "do_sample_frames": False,
        "fps": 2.0,
        "min_frames": 4,
        "max_frames": 768,
    }
    for name, value in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
