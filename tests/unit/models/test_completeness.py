"""A checkpoint folder that lacks a file or a weight is refused with the name of what is missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import watchbench
from lookout.models import TINY, ModelError, find_model
from lookout.models.completeness import PROMPTS
from lookout.models.engines import UnsupportedModelError, load_engine
from lookout.models.families import load_tower
from lookout.models.vision import VisionError
from watchbench.evaluation.check import CheckError, check_model

CLIP = sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4"))[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def shards(folder: Path) -> Path:
    """Cut a folder's weights in two, as large checkpoints are published; the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    half = len(names) // 2
    save_file({name: tensors[name] for name in names[:half]}, folder / files[0], {"format": "pt"})
    save_file({name: tensors[name] for name in names[half:]}, folder / files[1], {"format": "pt"})
    where = {name: files[number >= half] for number, name in enumerate(names)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


def test_shards_and_their_index_are_taken(folder: Path) -> None:
    shards(folder)
    assert find_model(folder) == folder


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors, which model.*index"):
        find_model(folder)


@pytest.mark.parametrize("where", [7, {"a": 1}, {"a": "../model.safetensors"}])
def test_an_index_that_names_no_files_is_refused(folder: Path, where: Any) -> None:
    shards(folder).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(ModelError, match="weight_map"):
        find_model(folder)


def test_shards_without_an_index_are_refused(folder: Path) -> None:
    shards(folder).unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json is missing"):
        find_model(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights: model\.safetensors is missing"):
        find_model(folder)


def test_the_pointer_of_weights_that_were_not_fetched_is_named(folder: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 6605592\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(ModelError, match="is a Git LFS pointer: fetch the weights with git lfs pull"):
        find_model(folder)


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer: tokenizer\.json is missing"):
        find_model(folder)


def test_a_folder_without_a_chat_template_is_refused_before_anything_starts(folder: Path) -> None:
    for name in PROMPTS:
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="no chat template, which defines how the model is asked"):
        find_model(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages }}"}))
    assert find_model(folder) == folder
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert find_model(folder) == folder


def test_windows_that_cannot_be_read_are_named_before_anything_starts(folder: Path) -> None:
    (folder / "lookout_windows.json").write_text('{"fps": "two"}')
    with pytest.raises(ModelError, match=r"lookout_windows\.json: fps must be a number, not 'two'"):
        find_model(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("trusted_prompts")
def test_a_weight_that_is_not_there_is_named(folder: Path) -> None:
    """The stock classes draw it at random, and say so in a warning only."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["language_model.model.layers.0.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    problem = rf"{re.escape(str(folder))} lacks 1 weight .*layers\.0\.self_attn\.q_proj\.weight"
    with pytest.raises(UnsupportedModelError, match=problem):
        load_engine(find_model(folder))
    with pytest.raises(CheckError, match=problem):
        check_model(folder, CLIP, frames=4)


@pytest.mark.slow
@pytest.mark.usefixtures("trusted_prompts")
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["language_model.model.layers.0.mlp.up_proj.weight", "vision_tower"])
def test_a_weight_that_is_not_finite_is_named(folder: Path, name: str, value: float) -> None:
    """The model came up, and every window of every camera had no answer."""
    tensors = load_file(folder / "model.safetensors")
    name = next(tensor for tensor in tensors if tensor.startswith(name))
    tensors[name].view(-1)[1] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    place = name.removeprefix("language_model.model.").removeprefix("vision_tower.")
    problem = rf"{re.escape(str(folder))}: the weight .*{re.escape(place)} has numbers that are not finite"
    with pytest.raises(UnsupportedModelError, match=problem):
        load_engine(find_model(folder))
    with pytest.raises(CheckError, match=problem):
        check_model(folder, CLIP, frames=4)
    if name.startswith("vision_tower"):
        with pytest.raises(VisionError, match=problem):
            load_tower(folder)


@pytest.mark.slow
def test_weights_of_the_tower_that_are_not_there_are_named_and_counted(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tower = sorted(name for name in tensors if "vision_tower" in name)
    left = {name: tensor for name, tensor in tensors.items() if name not in tower}
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(VisionError, match=rf"lacks {len(tower)} weights .* and {len(tower) - 3} more"):
        load_tower(folder)
