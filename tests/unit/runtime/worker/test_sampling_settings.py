"""Sampling comes from the model's folder unless a setting says otherwise; stages that differ are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.models import TINY
from lookout.runtime.worker import ServiceSettings, load_settings
from lookout.runtime.worker.fleet_check import client_id, differences
from lookout.services.decode.settings import DecodeSettings
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prune_encode.settings import PruneEncodeSettings

LOCAL = {"LOOKOUT_MODE": "local", "LOOKOUT_INSTANCE": "stage-0"}
STAGES = (DecodeSettings, PruneEncodeSettings, PrefillSettings)


def published(folder: Path, windows: str | None = None) -> dict[str, str]:
    """The environment of a stage whose model is a checkpoint of another family."""
    (folder / "config.json").write_text('{"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14}}')
    if windows is not None:
        (folder / "lookout_windows.json").write_text(windows)
    return {**LOCAL, "LOOKOUT_MODEL_DIR": str(folder)}


def sampled(settings: ServiceSettings) -> tuple[float, float, float]:
    return settings.fps, settings.stride_s, settings.window_s


@pytest.mark.parametrize("kind", STAGES)
def test_every_stage_takes_windows_from_the_model_s_folder(
    kind: type[ServiceSettings], tmp_path: Path
) -> None:
    assert sampled(load_settings(kind, LOCAL)) == (2, 2, 10)
    assert sampled(load_settings(kind, {**LOCAL, "LOOKOUT_MODEL_DIR": str(TINY)})) == (2, 2, 10)
    assert sampled(load_settings(kind, published(tmp_path))) == (2, 8, 40)
    own = published(tmp_path, '{"fps": 1, "stride_s": 4, "window_s": 20}')
    assert sampled(load_settings(kind, own)) == (1, 4, 20)


def test_an_explicit_setting_wins(tmp_path: Path) -> None:
    environ = {**published(tmp_path), "LOOKOUT_STRIDE_S": "10"}
    assert sampled(load_settings(PrefillSettings, environ)) == (2, 10, 40)


def test_what_does_not_fit_together_says_where_it_comes_from(tmp_path: Path) -> None:
    environ = {**published(tmp_path), "LOOKOUT_STRIDE_S": "9"}
    with pytest.raises(
        StartupError, match=r"LOOKOUT_WINDOW_S=40 \(not set, so the model's\).*LOOKOUT_STRIDE_S=9$"
    ):
        load_settings(PrefillSettings, environ)


def test_a_wrong_file_in_the_folder_stops_the_stage(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"lookout_windows\.json: window_s=41 is not a multiple"):
        load_settings(DecodeSettings, published(tmp_path, '{"window_s": 41}'))


def test_instances_of_a_stage_with_other_folders_refuse_each_other_by_name(tmp_path: Path) -> None:
    tiny, other = (load_settings(PrefillSettings, each) for each in (LOCAL, published(tmp_path)))
    told = differences(client_id("prefill", other.shared), client_id("prefill", tiny.shared))
    assert told == ["stride is 2 there and 8 here", "window is 10 there and 40 here"]
