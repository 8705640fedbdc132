"""Prefill's start."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import Context, load_settings
from lookout.services.prefill.settings import PrefillSettings
from tests.tiny_models import checkpoint


def test_a_file_of_the_model_that_cannot_be_read_stops_the_service_by_name(tmp_path: Path) -> None:
    from lookout.services.prefill.__main__ import make_handler

    for source in checkpoint("internvl").iterdir():
        (tmp_path / source.name).symlink_to(source)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)  # a link to itself; rights do not stop root, whom tests may run as
    settings = load_settings(PrefillSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_MODEL_DIR": str(tmp_path)})
    context: Context[PrefillSettings] = Context.__new__(Context)
    context.settings = settings
    with pytest.raises(
        StartupError, match=rf"LOOKOUT_MODEL_DIR=.*{weights} cannot be read: .*levels of symbolic"
    ):
        make_handler(context)


def test_a_folder_without_a_model_stops_the_service_by_name() -> None:
    from lookout.services.prefill.__main__ import make_handler

    settings = load_settings(PrefillSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_MODEL_DIR": "/nowhere"})
    context: Context[PrefillSettings] = Context.__new__(Context)
    context.settings = settings
    with pytest.raises(StartupError, match="LOOKOUT_MODEL_DIR=/nowhere"):
        make_handler(context)
