"""The half of a checkpoint for prune-encode: the same tower, the whole's digest, no language layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.errors import StartupError
from lookout.models import TINY, ModelError
from lookout.models.digest import VISION_HALF, folder_digest, tower_digest
from lookout.models.families import load_tower
from lookout.models.vision_half import write_vision_half
from lookout.runtime.worker import checked_model
from lookout.runtime.worker.settings import ServiceSettings
from tests import tiny_models


def names(folder: Path) -> set[str]:
    """The tensors in a folder's weights."""
    tensors: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            tensors |= set(weights.keys())
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_half_of_every_family_gives_the_same_tower(family: str, tmp_path: Path) -> None:
    whole = tiny_models.checkpoint(family)
    half = write_vision_half(whole, tmp_path / "half")
    assert half.digest == folder_digest(whole) == tower_digest(tmp_path / "half")
    assert half.half_bytes < half.whole_bytes
    left_out = names(whole) - names(tmp_path / "half")
    assert left_out
    assert all("layers." in name or "lm_head" in name for name in left_out)
    before, after = load_tower(whole), load_tower(tmp_path / "half")
    weights = [dict(tower.model.named_parameters()) for tower in (before, after)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


@pytest.mark.slow
def test_shards_without_a_tower_are_left_out(tmp_path: Path) -> None:
    whole = Path(shutil.copytree(TINY, tmp_path / "whole"))
    with safe_open(whole / "model.safetensors", framework="pt") as weights:
        tensors = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 - not a dict
    (whole / "model.safetensors").unlink()
    layers = {name: tensor for name, tensor in tensors.items() if "language_model.model.layers" in name}
    shards = {"model-00001-of-00002.safetensors": layers}
    shards["model-00002-of-00002.safetensors"] = {
        name: tensor for name, tensor in tensors.items() if name not in layers
    }
    for file, part in shards.items():
        save_file(part, whole / file, {"format": "pt"})
    index = {name: file for file, part in shards.items() for name in part}
    (whole / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    write_vision_half(whole, tmp_path / "half")
    (shard,) = (tmp_path / "half").glob("*.safetensors")
    assert shard.name == "model-00002-of-00002.safetensors"
    assert load_tower(tmp_path / "half").grid == load_tower(whole).grid


def test_only_services_without_a_language_model_take_the_half(tmp_path: Path) -> None:
    half = tmp_path / "half"
    digest = write_vision_half(TINY, half).digest
    settings = ServiceSettings(mode="local", model_digest=digest)
    assert checked_model(settings, half, tower_only=True) == (half, digest)
    with pytest.raises(StartupError, match="vision half of a checkpoint; give the complete one"):
        checked_model(settings, half)
    (half / VISION_HALF).write_text("{}")
    with pytest.raises(StartupError, match="states no digest"):
        checked_model(settings, half, tower_only=True)


def test_a_half_of_a_half_and_a_used_target_are_refused(tmp_path: Path) -> None:
    write_vision_half(TINY, tmp_path / "half")
    with pytest.raises(ModelError, match="has only the vision half of a checkpoint"):
        write_vision_half(tmp_path / "half", tmp_path / "quarter")
    with pytest.raises(ModelError, match="is not empty"):
        write_vision_half(TINY, tmp_path / "half")


def test_the_command_says_what_it_saves_and_how_to_pack_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["model", "vision", str(TINY), str(tmp_path / "half")])
    assert result.exit_code == 0
    assert "tar -C" in result.stdout
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["digest"] == folder_digest(TINY)
    assert document["half_bytes"] < document["whole_bytes"]
