"""Prefill's start."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import Context, load_settings
from lookout.services.prefill.settings import PrefillSettings


def test_a_folder_without_a_model_stops_the_service_by_name() -> None:
    from lookout.services.prefill.__main__ import make_handler

    settings = load_settings(PrefillSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_MODEL_DIR": "/nowhere"})
    context: Context[PrefillSettings] = Context.__new__(Context)
    context.settings = settings
    with pytest.raises(StartupError, match="LOOKOUT_MODEL_DIR=/nowhere"):
        make_handler(context)
