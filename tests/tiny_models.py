"""Tiny random models of every family, saved as ordinary checkpoints with a byte-level tokenizer.

`checkpoint(family)` is cached for the test session; weights are seeded, and every bias, norm, class token
and position row is random too, so that nothing is right by being zero.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models as token_models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from lookout.local.processes import remove_scratch, scratch_folder
from lookout.models.families import family_of

if TYPE_CHECKING:  # transformers' models import compilers: builders do, and no worker that collects tests
    from transformers import PreTrainedConfig, PreTrainedModel

FAMILIES = (
    "internvl",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "llava_onevision",
    "llava_onevision2",
    "llava_next_video",
    "smolvlm",
)
#: families as cases of a costly test: one with positions in one axis and one in three; all in `make test-all`
FEW_FAMILIES = [
    family if family in ("internvl", "qwen3_vl") else pytest.param(family, marks=pytest.mark.long)
    for family in FAMILIES
]
# Height and width of the usual input in pixels: 4x4 tokens a frame, 5x5 for LLaVA-OneVision (9x9 patches,
# an odd grid).
SIZE = {
    "internvl": 112,
    "qwen2_5_vl": 112,
    "qwen2_vl": 112,
    "qwen3_vl": 128,
    "llava_onevision": 126,
    "llava_onevision2": 112,
    "llava_next_video": 112,
    "smolvlm": 192,
}
VOCABULARY = 512
# Heads of 32, two key heads: the smallest shape that vLLM's CPU kernels and two tensor-parallel ranks both
# take.
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "bos_token_id": 256,  # <|endoftext|>, the first after the bytes
    "tie_word_embeddings": False,
}
QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n"
    "{% if m.content is string %}{{m.content}}{% else %}{% for c in m.content %}"
    "{% if c.type=='text' %}{{c.text}}{% elif c.type=='image' %}%IMAGE%{% else %}%VIDEO%{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(
    folder: Path,
    special: list[str],
    names: dict[str, str],
    image: str,
    video: str,
    *,
    begin: bool = False,
    answers: tuple[str, str] = ("Yes", "No"),
) -> Callable[[str], int]:
    """Save a byte-level tokenizer with the family's special tokens; returns the id of a token. `begin`: it
    begins every text with a token of its own."""
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(token_models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    both = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *special]
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in both])
    # The answers of every question, one token each.
    core.add_tokens([AddedToken(answer, normalized=False) for answer in answers])
    if begin:
        first = ("<|endoftext|>", int(core.token_to_id("<|endoftext|>")))
        core.post_processor = TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|endoftext|>" if begin else None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        extra_special_tokens=names,
    )
    fast.chat_template = CHAT.replace("%IMAGE%", image).replace("%VIDEO%", video)
    fast.save_pretrained(folder)
    return lambda name: int(fast.convert_tokens_to_ids(name))


def rope(**extra: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e6, **extra}


def write(folder: Path, name: str, value: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(value, indent=1))


def processors(folder: Path, image: dict[str, Any], video: dict[str, Any]) -> None:
    write(folder, "preprocessor_config.json", image)
    write(folder, "video_preprocessor_config.json", {**image, "do_sample_frames": False, **video})


def qwen_tokens(folder: Path) -> tuple[Callable[[str], int], dict[str, int]]:
    names = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>",
    }
    around = "<|vision_start|>{}<|vision_end|>"
    ids = tokenizer(
        folder, QWEN_TOKENS, names, around.format("<|image_pad|>"), around.format("<|video_pad|>")
    )
    return ids, {f"{name}_id": ids(token) for name, token in names.items()}


def qwen_processors(folder: Path, patch: int, mean: float, name: str, video: str, *, time: int = 2) -> None:
    side = (2 * patch) ** 2
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "temporal_patch_size": time,
        "merge_size": 2,
        "size": {"shortest_edge": 4 * side, "longest_edge": 1024 * side},
        "image_mean": [mean] * 3,
        "image_std": [0.27, 0.26, 0.28],
        "processor_class": name,
    }
    processors(folder, image, {"video_processor_type": video, "fps": 2.0, "min_frames": 4, "max_frames": 768})


def qwen2_5_vl(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids, special = qwen_tokens(folder)
    qwen_processors(folder, 14, 0.46, "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor")
    defaults = {
        "depth": 4,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 128,
        "out_hidden_size": text["hidden_size"],
        "fullatt_block_indexes": [1, 3],
        "window_size": 56,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
    }
    sections = text.pop("sections", [4, 6, 6])
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={
                **text,
                "rope_parameters": rope(mrope_section=sections),
                "eos_token_id": ids("<|im_end|>"),
            },
            vision_config={**defaults, **vision},
            tie_word_embeddings=False,
            **special,
        )
    )


def qwen2_vl(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    ids, special = qwen_tokens(folder)
    qwen_processors(folder, 14, 0.46, "Qwen2VLProcessor", "Qwen2VLVideoProcessor")
    defaults = {
        "depth": 4,
        "embed_dim": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "hidden_size": text["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    sections = text.pop("sections", [4, 6, 6])
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={
                **text,
                "rope_parameters": rope(mrope_section=sections),
                "eos_token_id": ids("<|im_end|>"),
            },
            vision_config={**defaults, **vision},
            tie_word_embeddings=False,
            **special,
        )
    )


def qwen3_vl(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids, special = qwen_tokens(folder)
    qwen_processors(folder, 16, 0.5, "Qwen3VLProcessor", "Qwen3VLVideoProcessor")
    defaults = {
        "depth": 4,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 128,
        "out_hidden_size": text["hidden_size"],
        "deepstack_visual_indexes": [0, 1, 2],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 36,
    }
    heads = text.setdefault("head_dim", text["hidden_size"] // text["num_attention_heads"])
    sections = text.pop("sections", [heads // 2 - 2 * (heads // 6), heads // 6, heads // 6])
    mrope = rope(mrope_section=sections, mrope_interleaved=True)
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config={**text, "rope_parameters": mrope, "eos_token_id": ids("<|im_end|>")},
            vision_config={**defaults, **vision},
            tie_word_embeddings=False,
            **special,
        )
    )


def internvl(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    ids = tokenizer(folder, list(names.values()), names, "<IMG_CONTEXT>\n", "<video>\n")
    defaults = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": [SIZE["internvl"]] * 2,
        "patch_size": [14, 14],
        "attention_bias": True,
        **vision,
    }
    tokens = (defaults["image_size"][0] // defaults["patch_size"][0] // 2) ** 2
    size = {"height": defaults["image_size"][0], "width": defaults["image_size"][1]}
    norm = {"size": size, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    image = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "crop_to_patches": False,
        "min_patches": 1,
        "max_patches": 4,
    }
    name = {"processor_class": "InternVLProcessor"}
    processors(folder, {**image, **norm, **name}, {"video_processor_type": "InternVLVideoProcessor"})
    write(folder, "processor_config.json", {"image_seq_length": tokens, **name})
    return InternVLForConditionalGeneration(
        InternVLConfig(
            text_config={
                **text,
                "model_type": "qwen2",
                "rope_parameters": rope(),
                "eos_token_id": ids("<|im_end|>"),
            },
            vision_config=defaults,
            image_token_id=ids("<IMG_CONTEXT>"),
            image_seq_length=tokens,
            downsample_ratio=0.5,
            tie_word_embeddings=False,
        )
    )


def llava_onevision(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    names = {"image_token": "<image>", "video_token": "<video>"}
    ids = tokenizer(folder, list(names.values()), names, "<image>\n", "<video>\n")
    defaults = {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIZE["llava_onevision"],
        "patch_size": 14,
        "vision_use_head": False,
        **vision,
    }
    side = defaults["image_size"]
    pins = [[side, side], [side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    size = {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    image = {"image_processor_type": "LlavaOnevisionImageProcessor", "image_grid_pinpoints": pins, **size}
    name = {"processor_class": "LlavaOnevisionProcessor"}
    processors(folder, {**image, **name}, {"video_processor_type": "LlavaOnevisionVideoProcessor"})
    patches = (side // defaults["patch_size"]) ** 2
    write(
        folder,
        "processor_config.json",
        {"num_image_tokens": patches, "vision_feature_select_strategy": "full", **name, **names},
    )
    return LlavaOnevisionForConditionalGeneration(
        LlavaOnevisionConfig(
            text_config={
                **text,
                "model_type": "qwen2",
                "rope_parameters": rope(),
                "eos_token_id": ids("<|im_end|>"),
            },
            vision_config=defaults,
            image_token_index=ids("<image>"),
            video_token_index=ids("<video>"),
            image_grid_pinpoints=pins,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=False,
        )
    )


def llava_onevision2(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    # transformers has no classes for it: Lookout registers its own.
    from lookout.models.families.towers.llava_onevision2_model import (
        LlavaOnevision2Config,
        LlavaOnevision2ForConditionalGeneration,
        register,
    )

    register()
    ids, special = qwen_tokens(folder)
    qwen_processors(folder, 14, 0.46, "LlavaOnevision2Processor", "LlavaOnevision2VideoProcessor", time=1)
    defaults = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "patch_size": 14,
        "frame_windows_size": 3,
    }
    text.setdefault("head_dim", text["hidden_size"] // text["num_attention_heads"])
    return LlavaOnevision2ForConditionalGeneration(
        LlavaOnevision2Config(
            text_config={**text, "rope_parameters": rope(), "eos_token_id": ids("<|im_end|>")},
            vision_config={**defaults, **vision},
            tie_word_embeddings=False,
            **special,
        )
    )


def llava_next_video(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration

    names = {"image_token": "<image>", "video_token": "<video>"}
    ids = tokenizer(folder, list(names.values()), names, "<image>\n", "<video>\n", begin=True)
    defaults = {
        "model_type": "clip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIZE["llava_next_video"],
        "patch_size": 14,
        "projection_dim": 32,
        **vision,
    }
    side = defaults["image_size"]
    pins = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    square = {"height": side, "width": side}
    norm = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "crop_size": square}
    image = {
        "image_processor_type": "LlavaNextImageProcessor",
        "image_grid_pinpoints": pins,
        "size": {"shortest_edge": side},
        **norm,
    }
    name = {"processor_class": "LlavaNextVideoProcessor"}
    video = {"video_processor_type": "LlavaNextVideoVideoProcessor", "do_center_crop": False}
    processors(folder, {**image, **name}, video)
    write(
        folder,
        "processor_config.json",
        {
            "patch_size": defaults["patch_size"],
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            **name,
            **names,
        },
    )
    return LlavaNextVideoForConditionalGeneration(
        LlavaNextVideoConfig(
            text_config={
                **text,
                "model_type": "llama",
                "rope_parameters": rope(),
                "eos_token_id": ids("<|im_end|>"),
            },
            vision_config=defaults,
            image_token_index=ids("<image>"),
            video_token_index=ids("<video>"),
            image_grid_pinpoints=pins,
            tie_word_embeddings=False,
        )
    )


def smolvlm(folder: Path, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    names = {
        "image_token": "<image>",
        "video_token": "<video>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
    }
    ids = tokenizer(folder, list(names.values()), names, "<image>", "<video>", answers=(" Yes", " No"))
    defaults = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIZE["smolvlm"],
        "patch_size": 16,
        **vision,
    }
    side, merge = defaults["image_size"], 3
    edge = {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}
    norm = {**edge, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    name = {"processor_class": "SmolVLMProcessor"}
    image = {"image_processor_type": "SmolVLMImageProcessor", **norm, **name}
    processors(folder, image, {"video_processor_type": "SmolVLMVideoProcessor"})
    tokens = (side // defaults["patch_size"] // merge) ** 2
    write(folder, "processor_config.json", {"image_seq_len": tokens, **name})
    return SmolVLMForConditionalGeneration(
        SmolVLMConfig(
            text_config={
                **text,
                "model_type": "llama",
                "rope_parameters": rope(),
                "eos_token_id": ids("<end_of_utterance>"),
                "pad_token_id": ids("<|endoftext|>"),
            },
            vision_config=defaults,
            image_token_id=ids("<image>"),
            scale_factor=merge,
            pad_token_id=ids("<|endoftext|>"),
            tie_word_embeddings=False,
        )
    )


BUILDERS: dict[str, Callable[[Path, dict[str, Any], dict[str, Any]], PreTrainedModel]] = {
    "internvl": internvl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen3_vl": qwen3_vl,
    "llava_onevision": llava_onevision,
    "llava_onevision2": llava_onevision2,
    "llava_next_video": llava_next_video,
    "smolvlm": smolvlm,
}


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> None:
    """Random weights of unit gain, and random biases, norms, class tokens and position rows."""
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=draw)
        if weight.ndim >= 2 and "position" not in name and "pos_embed" not in name and "cls" not in name:
            fan_in = weight[0].numel() if weight.ndim > 2 or "embed_tokens" not in name else 1
            weight.copy_(noise * (1.2 / fan_in**0.5))
        elif (name.endswith("weight") and weight.ndim == 1) or "lambda_" in name:
            weight.copy_(1 + 0.1 * noise)
        else:
            weight.copy_(0.3 * noise)


def build(
    family: str,
    folder: Path,
    *,
    seed: int = 0,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a random checkpoint of `family` into `folder`; `text` and `vision` override the
    configuration's shapes."""
    _short_configurations()
    folder.mkdir(parents=True, exist_ok=True)
    model = BUILDERS[family](folder, {**TEXT, **(text or {})}, vision or {})
    randomise(model, seed)
    config: PreTrainedConfig = model.config
    config.architectures = [type(model).__name__]
    model.to(dtype).save_pretrained(folder)
    return folder


@functools.cache
def _short_configurations() -> None:
    """transformers formats every configuration that it reads for a line of its log, also where nobody reads
    that: from here on by the class's name."""
    from transformers import PreTrainedConfig

    PreTrainedConfig.__repr__ = lambda config: f"<{type(config).__name__}>"  # type: ignore[method-assign]


@functools.cache
def _root() -> Path:
    root = scratch_folder("tiny")  # one whose process was killed goes with the next one's coming
    atexit.register(remove_scratch, root)
    return root


@functools.cache
def checkpoint(family: str, seed: int = 0) -> Path:
    """The folder of a tiny random checkpoint of `family`, made once a
    session; read it, do not write to it."""
    return build(family, _root() / f"{family}-{seed}", seed=seed)


def language_half(whole: Any) -> Any:
    """The language model inside a whole stock model."""
    return getattr(whole.model, family_of(whole.config.model_type).language_model)


def register_attention(name: str, attend: Callable[..., Any]) -> None:
    """Let the stock models compute attention so, under a name of `_attn_implementation`."""
    # Not at the head: it imports transformers' models and compilers, and every worker collects tests.
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)


# The published folders' chat templates, as strings of `chat_template.json`.
QWEN_PUBLISHED = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}%SYSTEM%{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PUBLISHED_TEMPLATES = {
    "qwen2_5_vl": QWEN_PUBLISHED.replace(
        "%SYSTEM%", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    ),
    "qwen2_vl": QWEN_PUBLISHED.replace(
        "%SYSTEM%", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    ),
    "qwen3_vl": QWEN_PUBLISHED.replace("%SYSTEM%", ""),
    "internvl": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for content in message['content'] %}"
        "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
        "{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
        "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{{'<|im_end|>\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llava_onevision": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}"
        "{# Render all images first #}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
        "{{ '<image>\n' }}{% endfor %}"
        "{# Render all video then #}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}"
        "{{ '<video>\n' }}{% endfor %}"
        "{# Render all text next #}"
        "{% if message['role'] != 'assistant' %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{{ '\n' + content['text'] }}{% endfor %}"
        "{% else %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{% generation %}{{ '\n' + content['text'] }}{% endgeneration %}{% endfor %}{% endif %}"
        "{{'<|im_end|>'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llava_next_video": (
        "{% for message in messages %}{% if message['role'] != 'system' %}"
        "{{ message['role'].upper() + ': '}}{% endif %}"
        "{# Render all images first #}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
        "{{ '<image>\n' }}{% endfor %}"
        "{# Render all video then #}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}"
        "{{ '<video>\n' }}{% endfor %}"
        "{# Render all text next #}"
        "{% if message['role'] != 'assistant' %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{{ content['text'] + ' '}}{% endfor %}"
        "{% else %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    # What vLLM asks of a video's place; the published template could not be read.
    "llava_onevision2": QWEN_PUBLISHED.replace("%SYSTEM%", ""),
    # It shows pictures alone: the processor has a template of its own for videos.
    "smolvlm": (
        "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
        "<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    ),
}


@functools.cache
def published(family: str) -> Path:
    """The same checkpoint in a folder shaped as the family's published one; read it, do not write to it.

    Weights in shards with an index, a legacy configuration (`rope_theta`, `rope_scaling`, `torch_dtype`;
    Qwen2.5-VL's text model at the top level), the published chat template in `chat_template.json`, for
    Qwen2.5-VL no configuration of its video processor, and for LLaVA-OneVision-2 Python files that must not
    run.
    """
    # Not at the head: its classes of models import compilers, and every worker collects tests.
    from transformers import AutoModelForImageTextToText

    plain, folder = checkpoint(family), _root() / f"{family}-published"
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns("*.safetensors", "chat_template.jinja"))
    model = AutoModelForImageTextToText.from_pretrained(plain)
    model.save_pretrained(folder, max_shard_size="1MB", save_original_format=family != "llava_onevision2")
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    if "mrope_section" in rope:
        legacy = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        text["rope_scaling"] = legacy if family == "qwen2_5_vl" else rope
    for part in (config, text):
        part["torch_dtype"] = part.pop("dtype", "float32")
    if family == "qwen2_5_vl":
        # As the published one: no text_config.
        del config["text_config"]
        config = {**text, **config, "model_type": family}
        (folder / "video_preprocessor_config.json").unlink()
    if family == "llava_onevision2":
        config["vision_config"]["model_type"] = family
        config["auto_map"] = {
            "AutoConfig": f"configuration_{family}.LlavaOnevision2Config",
            "AutoModelForImageTextToText": f"modeling_{family}.LlavaOnevision2ForConditionalGeneration",
            "AutoProcessor": f"processing_{family}.LlavaOnevision2Processor",
        }
        for part in ("configuration", "modeling", "processing"):
            (folder / f"{part}_{family}.py").write_text("raise SystemExit('code of a folder ran')")
    write(folder, "config.json", config)
    write(folder, "chat_template.json", {"chat_template": PUBLISHED_TEMPLATES[family]})
    return folder
