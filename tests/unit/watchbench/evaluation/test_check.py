"""`lookout model check`: folders of published shape, compared with the stock processor and model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import watchbench
from lookout.cli.app import app
from lookout.models import find_model
from lookout.models.engines import load_engine
from lookout.models.families import family_of, load_layout
from lookout.models.windows import Layout
from lookout.streams import ClipFrames
from tests.tiny_models import FAMILIES, FEW_FAMILIES, checkpoint, published
from tests.unit.models.families.test_layout import folder_with
from watchbench.evaluation import check
from watchbench.evaluation.check import MEANINGFUL, CheckError, check_model

pytestmark = pytest.mark.usefixtures("trusted_prompts")
CLIP = sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_a_published_folder_runs_as_in_transformers(family: str) -> None:
    """Pixels, prompt and positions are the stock processor's, answers the stock model's own forward."""
    folder = published(family)
    report = check_model(folder, CLIP, cameras=10, window_s=20, frames=4)
    assert {one.name: one.same for one in report.comparisons} == {
        "pixels": True,
        "prompt": True if family_of(family).has_processor else None,
        "positions": True,
        "answers": True,
    }, report.comparisons
    assert report.family == family
    assert report.engines == ("transformers", "vllm")
    engine = load_engine(folder)
    assert report.row_bytes == engine.model.row_bytes
    engine.close()
    assert report.memory_bytes == report.weight_bytes + 10 * report.window_rows * report.row_bytes


@pytest.mark.slow
def test_a_layout_of_its_own_is_not_compared_with_the_stock_prompt() -> None:
    report = check_model(find_model(), CLIP, frames=4)
    assert {one.name: one.same for one in report.comparisons} == {
        "pixels": True,
        "prompt": None,
        "positions": True,
        "answers": True,
    }, report.comparisons
    assert report.same


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_folder_is_the_same_model_as_a_plain_one(family: str) -> None:
    one, other = load_layout(published(family)), load_layout(checkpoint(family))
    assert (one.layers, one.positions, one.yes, one.no) == (
        other.layers,
        other.positions,
        other.yes,
        other.no,
    )
    assert one.stop == other.stop


@pytest.mark.slow
def test_a_prompt_that_differs_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that forgets the end of the question: the comparison says where the two part."""

    def short(folder: Path) -> Layout:
        layout = load_layout(folder)
        return replace(layout, question_tail=layout.question_tail[1:])

    monkeypatch.setattr(check, "load_layout", short)
    report = check_model(checkpoint("qwen2_5_vl"), CLIP, frames=4)
    (wrong,) = [one for one in report.comparisons if not one.same]
    assert wrong.name == "prompt"
    assert "<|im_end|>" in wrong.detail


@pytest.mark.long
def test_a_thinking_checkpoint_is_asked_after_its_thought(tmp_path: Path) -> None:
    """The stock template opens a thought; ours is compared with its closed form, and the random weights say
    neither yes nor no, which `model check` tells."""
    folder = folder_with(tmp_path / "thinks", template="<think>\n")
    report = check_model(folder, CLIP, frames=4)
    prompt = {one.name: one for one in report.comparisons}["prompt"]
    assert (prompt.same, "with the thought closed" in prompt.detail) == (True, True)
    assert report.same
    assert 0 < report.answer_probability < MEANINGFUL
    command = CliRunner().invoke(app, ["model", "check", str(folder)])
    assert command.exit_code == 1
    assert "'Yes' and 'No' have" in command.output
    assert "about to say something else" in command.output


@pytest.mark.slow
def test_pixels_and_positions_that_differ_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another normalisation than the processor's, and times that are off by a second."""
    read = check.read_clip

    def late(*args: Any, **extra: Any) -> ClipFrames:
        clip = read(*args, **extra)
        return replace(clip, frames=[replace(each, slot=each.slot * 3) for each in clip.frames])

    monkeypatch.setattr(check, "read_clip", late)
    monkeypatch.setattr(check, "_normalisation", lambda processor: ([0.1] * 3, [0.2] * 3))
    report = check_model(checkpoint("qwen2_5_vl"), CLIP, frames=4)
    assert [one.name for one in report.comparisons if not one.same] == ["pixels", "positions", "answers"]


def test_answers_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison notices an engine that rotates keys wrongly."""
    from lookout.models.windows import Rotary

    angles = Rotary.angles
    monkeypatch.setattr(Rotary, "angles", lambda self, positions, *rest: angles(self, positions // 2, *rest))
    report = check_model(checkpoint("internvl"), CLIP, frames=4)
    assert [one.name for one in report.comparisons if not one.same] == ["answers"]
    assert not report.same


@pytest.mark.slow
def test_the_command_prints_json_and_says_what_is_wrong(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["model", "check", str(find_model()), "--window", "10", "--cameras", "3"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.output.strip().splitlines()[-1])
    assert told["same"] is True
    assert told["answers"] is True
    assert told["answer_probability"] > 0.9
    assert told["answer"] == ["Yes", "No"]
    assert told["cameras"] == 3
    assert told["height"] == told["width"] == 112
    missing = CliRunner().invoke(app, ["model", "check", str(tmp_path / "nowhere")])
    assert missing.exit_code == 1
    assert "nowhere does not exist" in str(missing.exception)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    with pytest.raises(CheckError, match="mistral"):
        check_model(tmp_path, CLIP)
    with pytest.raises(CheckError, match="samples at 2 a second"):
        check_model(find_model(), CLIP, frames=100_000)


@pytest.mark.long
def test_sizes_grow_with_the_window() -> None:
    short, long = (check_model(find_model(), CLIP, window_s=seconds, frames=4) for seconds in (None, 40))
    assert (short.window_s, short.fps) == (10, 2)  # as the tiny model's folder says
    assert np.isclose((long.window_rows - 10) / (short.window_rows - 10), 4, rtol=0.1)
