"""What a checkpoint looks at, read without loading it, is what its tower says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lookout.models import ModelError
from lookout.models.families import load_tower, model_input
from lookout.models.vision import FrameInput
from lookout.models.vision.base import patch_rows
from lookout.services.decode.settings import DecodeSettings
from tests.tiny_models import FAMILIES, build, checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_the_input_follows_the_model(family: str) -> None:
    """Decode and the tower agree on every family without a setting."""
    folder = Path(checkpoint(family))
    grid, found = load_tower(folder).grid, model_input(folder)
    assert (found.width, found.height, found.patch) == (grid.width, grid.height, grid.patch)
    assert (found.rows, found.cols) == (grid.rows, grid.cols)
    assert DecodeSettings(mode="local", model_dir=folder).input == found
    wider = DecodeSettings(mode="local", model_dir=folder, input_width=2 * grid.patch).input
    assert (wider.width, wider.height) == (2 * grid.patch, grid.height)


SQUARE = {"image_size": [448, 448], "patch_size": [14, 14]}


@pytest.mark.parametrize(
    ("family", "vision", "expected"),
    [
        ("internvl", SQUARE, (448, 14)),
        ("qwen2_5_vl", {"patch_size": 14}, (448, 14)),
        ("qwen2_5_vl", {"patch_size": 14, "image_size": 112}, (112, 14)),
        ("qwen3_vl", {"patch_size": 16}, (448, 16)),
        ("llava_onevision", {"image_size": 384, "patch_size": 14}, (384, 14)),
        ("llava_onevision2", {"patch_size": 14, "spatial_merge_size": 2}, (448, 14)),
        ("llava_onevision2", {"patch_size": 16, "spatial_merge_size": 3, "image_size": 448}, (432, 16)),
        ("llava_next_video", {"image_size": 336, "patch_size": 14}, (336, 14)),
        ("smolvlm", {"image_size": 512, "patch_size": 16}, (512, 16)),
    ],
)
def test_the_input_of_a_published_configuration_is_read(
    tmp_path: Path, family: str, vision: dict[str, object], expected: tuple[int, int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "vision_config": vision}))
    found = model_input(tmp_path)
    assert (found.width, found.height, found.patch) == (expected[0], *expected)


NO_PATCH = '{"model_type": "llava_onevision2", "vision_config": {"patch_size": 0}}'
NO_SIZE = '{"model_type": "internvl", "vision_config": {"image_size": "big"}}'


@pytest.mark.parametrize("text", ["", "[]", '{"model_type": "bert"}', NO_SIZE, NO_PATCH])
def test_a_folder_that_is_no_such_model_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        model_input(tmp_path)


def test_a_remainder_that_fills_no_patch_is_not_looked_at() -> None:
    """SigLIP takes 384 pixels in patches of 14: 27 of them, and 6 pixels are left."""
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    assert np.array_equal(patch_rows(pixels, 14), patch_rows(pixels[:28, :28], 14))


def test_llava_with_a_remainder_encodes_its_own_size(tmp_path: Path) -> None:
    tower = load_tower(build("llava_onevision", tmp_path, vision={"image_size": 130}))
    grid = tower.grid
    assert (grid.height, grid.rows, grid.remainder) == (130, 9, (4, 4))
    pixels = np.zeros((1, 130, 130, 3), np.uint8)
    tokens = tower.encode([FrameInput(pixels, np.ones((grid.group_rows, grid.group_cols), bool))])[0].tokens
    assert torch.isfinite(tokens).all()
    assert tokens.shape[0] == grid.tokens
