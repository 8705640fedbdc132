"""A preset means masks and windows together, wherever it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lookout
from lookout.models.families import load_layout
from lookout.models.presets import PRESETS, PresetError, preset_of
from lookout.models.windows import Planner, Policy
from lookout.pruning import Change
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prune_encode.settings import PruneEncodeSettings
from tests.tiny_models import checkpoint
from watchbench.evaluation.evaluate import evaluate


@pytest.mark.parametrize("name", PRESETS)
def test_the_pipeline_and_the_services_agree_on_a_preset(name: str) -> None:
    preset = preset_of(name)
    pipeline = lookout.Pipeline(preset=name)
    assert pipeline._session("cam")._feed.policy == preset.masks
    windows = pipeline._session("cam")._planner.settings
    assert windows == preset.windows.sampled(pipeline._sampling)
    pipeline.close()
    common = {"mode": "local", "preset": name}
    assert PruneEncodeSettings(**common, model_dir=Path("x")).policy == preset.masks
    prefill = PrefillSettings(**common, model_dir=Path("x")).windows
    names = ("policy", "refresh_frames", "refresh_share", "refresh_surplus")
    assert [getattr(prefill, name) for name in names] == [getattr(preset.windows, name) for name in names]


def test_the_faithful_preset_has_the_defaults_masks_and_computes_no_less() -> None:
    default, faithful = preset_of("default"), preset_of("faithful")
    assert faithful.masks == default.masks
    assert replace(faithful.windows, refresh_share=None) == default.windows
    assert (faithful.windows.refresh_share or 0) > 0


def test_the_papers_preset_is_its_masks_and_its_windows() -> None:
    paper = preset_of("codecsight")
    assert (paper.masks.change, paper.windows.policy) == (Change.VECTORS, Policy.REFRESH)
    assert preset_of("default").masks.change is Change.LUMA


def test_a_planner_without_settings_plans_the_default() -> None:
    assert Planner(load_layout(checkpoint("internvl"))).settings == preset_of("default").windows


def test_an_unknown_preset_is_refused_everywhere_by_name() -> None:
    words = r"preset 'front' is unknown: choose one of default, faithful, codecsight"
    with pytest.raises(PresetError, match=words):
        preset_of("front")
    with pytest.raises(lookout.PipelineError, match=words):
        lookout.Pipeline(preset="front")
    with pytest.raises(PresetError, match=words):
        evaluate(checkpoint("internvl"), [], preset="front")
