"""What a checkpoint says of itself without its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lookout.models.families import load_layout, load_tower, tower_grid
from lookout.models.vision import VisionError
from lookout.recordings.analysis import AnalysisSettings, Analyzer
from lookout.recordings.analysis.sizing import part_frames
from tests.tiny_models import FAMILIES, checkpoint


def without_weights(family: str, folder: Path) -> Path:
    """The checkpoint's configuration and tokenizer."""
    return shutil.copytree(
        checkpoint(family), folder / "lean", ignore=shutil.ignore_patterns("*.safetensors")
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_a_recording_are_planned_without_weights(family: str, tmp_path: Path) -> None:
    folder, settings = without_weights(family, tmp_path), AnalysisSettings()
    assert tower_grid(folder) == load_tower(checkpoint(family)).grid
    whole = Analyzer(checkpoint(family))
    assert part_frames(folder, load_layout(folder), settings) == whole.part_frames(settings)


def test_a_configuration_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    folder = without_weights(FAMILIES[0], tmp_path)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(VisionError, match="lean"):
        tower_grid(folder)
