"""A checkpoint that lacks a weight is refused by vLLM's engine, too: vLLM itself takes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lookout.models import ModelError
from tests.tiny_models import checkpoint


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("internvl", "layers.0.self_attn.o_proj.weight"),
        ("internvl", "layers.1.self_attn.k_proj.bias"),
        ("qwen3_vl", "layers.1.mlp.up_proj.weight"),
        ("qwen3_vl", "norm.weight"),
    ],
)
def test_the_weight_is_named(family: str, lost: str, tmp_path: Path) -> None:
    from lookout.models.engines.vllm import load_engine

    folder = Path(shutil.copytree(checkpoint(family), tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if "language_model" in name and name.endswith(f".{lost}"))
    del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"lacks 1 weight of the model: .*\.{lost}; copy the whole"):
        load_engine(folder, max_rows=512, kv_cache_bytes=1 << 26).close()


@pytest.mark.usefixtures("no_engine")
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    from lookout.models.engines.vllm import load_engine

    folder = Path(shutil.copytree(checkpoint("internvl"), tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("language_model.model.layers.1.mlp.up_proj.weight"))
    weights[name].view(-1)[1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"the weight {name} has numbers that are not finite"):
        load_engine(folder, max_rows=512, kv_cache_bytes=1 << 26).close()


def test_a_checkpoint_may_have_layers_packed() -> None:
    from lookout.models.engines.vllm.internals.model import missing_weights

    packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    assert missing_weights(["a.qkv_proj.weight"], ["a.qkv_proj.weight"], packed) == []
    assert missing_weights(["a.qkv_proj.weight"], ["a.k_proj.weight", "a.v_proj.weight"], packed) == [
        "a.q_proj.weight"
    ]
    assert missing_weights(["a.norm.weight"], [], packed) == ["a.norm.weight"]
