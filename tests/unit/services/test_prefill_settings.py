"""Prefill's settings."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import load_settings
from lookout.services.prefill.settings import PrefillSettings


def test_settings_come_from_the_environment() -> None:
    environment = {
        "LOOKOUT_MODE": "local",
        "LOOKOUT_WINDOW_S": "40",
        "LOOKOUT_STRIDE_S": "8",
        "LOOKOUT_TOKEN_REPLICAS": "prune-0:7000, prune-1:7000",
        "LOOKOUT_STORE__LEASE_S": "3",
    }
    settings = load_settings(PrefillSettings, environment)
    assert (settings.window_blocks, settings.block_samples) == (5, 16)
    assert settings.token_replicas == ("prune-0:7000", "prune-1:7000")
    assert settings.store.lease_s == 3.0


def test_a_memory_is_refused_where_no_kv_is_kept() -> None:
    environment = {"LOOKOUT_MODE": "local", "LOOKOUT_MEMORY": "2h"}
    assert load_settings(PrefillSettings, environment).memory is not None
    for preset in ({"LOOKOUT_PRESET": "strides"}, {"LOOKOUT_REUSE": "false"}):
        with pytest.raises(StartupError, match="a preset other than strides"):
            load_settings(PrefillSettings, environment | preset)
