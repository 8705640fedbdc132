"""Training on real clips: what labels say of a crop, and what a run changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.unit.watchbench.groups import drawn, keep_group
from watchbench import cli, model as vlm, real, sight
from watchbench.questions import NAMES, answers
from watchbench.real import KINDS, SIDE, UNSURE, Labelled, RealPlan, RealTrainer, RealWindows, truth_of

PERSON = ("person", 0, 0.1, 0.2, 0.3, 0.8, 1.0)
WHOLE, RIGHT = (0.0, 0.0, 1.0), (0.5, 0.0, 0.5)
PLAN = RealPlan(steps=2, warm=1, groups=1, stock=1, held=8, prefixes=2, questions=2, muon=False)


def _told(rows: list[Any], crop: tuple[float, float, float], name: str) -> bool | None:
    """The answer after the last of some half seconds; None where it is unclear."""
    yes, known = answers(truth_of(rows, crop))
    row = NAMES.index(name)
    return bool(yes[0, -1, row]) if known[0, -1, row] else None


def test_no_camera_that_is_scored_teaches() -> None:
    clips = json.loads(real.LABELS.read_text())["clips"]
    scored = {clip.path for clip in sight.CLIPS}
    assert not scored & {clip["path"] for clip in clips}
    for clip in clips:
        assert not any(clip["camera"] in path for path in scored), clip["camera"]


def test_labels_are_boxes_in_the_picture_of_things_that_are_known() -> None:
    clips = json.loads(real.LABELS.read_text())["clips"]
    assert {clip["kind"] for clip in clips} == {kind for kinds in KINDS for kind in kinds}
    for clip in clips:
        for thing, _, x0, y0, x1, y1, share in (row for rows in clip["boxes"] for row in rows):
            assert thing in {"person", "lying", "falling", "vehicle"}
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
            assert share in {1.0, UNSURE}


def test_a_crop_shows_what_is_left_of_the_boxes() -> None:
    rows: list[Any] = [(PERSON,)] * 4
    assert _told(rows, WHOLE, "person") is True
    assert _told(rows, RIGHT, "person") is False
    assert _told([(), (), ()], WHOLE, "person") is False
    assert _told([((*PERSON[:6], UNSURE),)] * 4, WHOLE, "person") is None
    box = truth_of(rows, (0.1, 0.2, 0.5)).person_box[0, 0, 0]
    torch.testing.assert_close(box, torch.tensor([0.0, 0.0, 0.4, 1.2]))


def test_who_lies_lies_only_while_the_labels_say_so() -> None:
    down, falls = (("lying", *PERSON[1:]),), (("falling", *PERSON[1:]),)
    assert _told([(PERSON,)] * 3, WHOLE, "lying") is False
    assert _told([(PERSON,), falls], WHOLE, "lying") is None
    assert _told([(PERSON,), falls, down], WHOLE, "lying") is True
    assert _told([(PERSON,)] * 3, WHOLE, "left") is False
    assert _told([(PERSON,)] * 3, WHOLE, "static") is None


@pytest.fixture
def windows() -> RealWindows:
    """Clips of every kind: grain, and one person."""
    grain = np.random.default_rng(0).integers(0, 255, (7, SIDE, SIDE, 3), np.uint8)
    kinds = sorted({kind for kinds in KINDS for kind in kinds})
    return RealWindows([Labelled(kind, grain, ((PERSON,), ())) for kind in kinds])


@pytest.mark.long
@pytest.mark.slow
def test_a_window_depends_on_the_dice_alone(windows: RealWindows) -> None:
    one, other, third = (windows.group(random.Random(seed), masked=True) for seed in (1, 1, 2))
    assert torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.keep, other.keep)
    assert not torch.equal(one.pixels, third.pixels)
    assert one.pixels.shape == (len(KINDS), 20, 3, vlm.SIZE, vlm.SIZE)


def test_kinds_without_a_clip_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no clip that shows crowd, empty, fall, upright, vehicle"):
        RealWindows(real.load((tmp_path,)))
    asked = ["real", "--clips", str(tmp_path), "--output", str(tmp_path / "out")]
    told = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, asked)
    assert told.exit_code == 2
    assert "--clips" in told.output


@pytest.mark.long
def test_the_eye_learns_and_the_language_model_stays(
    tmp_path: Path, small: Path, windows: RealWindows
) -> None:
    trainer = RealTrainer(PLAN, tmp_path / "run" / "real", small, windows)
    keep_group(drawn(tmp_path / "drawn"), trainer.store)

    def part(name: str) -> torch.Tensor:
        module: Any = getattr(trainer.model.model, name)
        return torch.cat([value.detach().flatten() for value in module.parameters()])

    names = ("vision_tower", "multi_modal_projector", "language_model")
    before, seen = [part(name) for name in names], list[torch.Tensor]()
    assert trainer.run(lambda: seen.append(part(names[0])) is not None)
    assert torch.equal(seen[1], before[0])  # the heads alone learnt
    assert [torch.equal(part(name), old) for name, old in zip(names, before, strict=True)] == [
        False,
        False,
        True,
    ]
    assert trainer.estimate()["steps"] == 2
