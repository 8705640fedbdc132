"""Training on real clips: what labels say of a crop, and what a run changes."""

from __future__ import annotations

import base64
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.unit.watchbench.groups import drawn, keep_group
from watchbench import cli, encode, model as vlm, real, sight
from watchbench.footage import SPRITE
from watchbench.long import LongPlan, LongTrainer
from watchbench.questions import NAMES, answers
from watchbench.real import (
    AWAY,
    FRAMES,
    KINDS,
    MASK,
    POSED,
    SIDE,
    UNSURE,
    Labelled,
    Person,
    RealPlan,
    RealTrainer,
    RealWindows,
    truth_of,
)  # fmt: skip

PERSON = ("person", 0, 0.1, 0.2, 0.3, 0.8, 1.0)
WHOLE, RIGHT = (0.0, 0.0, 1.0), (0.5, 0.0, 0.5)
GREY = Person(torch.full((4, SPRITE, SPRITE // 4), 0.5).index_fill(0, torch.tensor([3]), 1.0), whole=True)
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
    assert not [clip["path"] for clip in clips if clip["path"].endswith(sight.FURTHER)]
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


@pytest.mark.parametrize("pose", ["upright", "lying", "falling"])
def test_the_boxes_of_people_who_are_pasted_hold_every_pixel_that_changed(pose: str) -> None:
    black, said = np.zeros((FRAMES, SIDE, SIDE, 3), np.uint8), set[str]()
    for seed in range(8):
        shown, rows = real.pasted(black, [()] * FRAMES, pose, [GREY], random.Random(seed))
        for picture, row in zip(shown, rows, strict=True):
            inside = np.zeros((SIDE, SIDE), bool)
            for state, _, x0, y0, x1, y1, share in row:
                assert share == 1.0
                said.add(state)
                inside[round(y0 * SIDE) : round(y1 * SIDE), round(x0 * SIDE) : round(x1 * SIDE)] = True
            assert not picture[~inside].any()
            assert picture[inside].any() == bool(row)
    assert said == {"person"} | {pose} - {"upright"} | ({"lying"} if pose == "falling" else set())


def test_who_is_turned_is_as_wide_as_before_high() -> None:
    up, down = (real.turned(GREY.picture, degrees, 0.5, 1.0, 1.0) for degrees in (0, 90))
    assert up.shape == (4, SIDE // 2, SIDE // 8)
    assert abs(down.shape[2] - up.shape[1]) <= 2
    assert abs(down.shape[1] - up.shape[2]) <= 2


def test_an_outline_leaves_what_lies_outside_it_transparent() -> None:
    bits = np.zeros(MASK, bool)
    bits[:, : MASK[1] // 2] = True
    outline = base64.b64encode(np.packbits(bits).tobytes()).decode()
    white = np.full((SIDE, SIDE, 3), 255, np.uint8)
    person = real.cut_out(white, [0.25, 0.0, 0.5, 1.0], outline, aspect=2.0)
    alpha = person.picture[3]
    assert alpha.shape == (SPRITE, SPRITE // 2)  # a picture twice as wide as high was shown as a square
    assert person.whole
    assert alpha[:, :10].min() > 0.9
    assert alpha[:, -10:].max() < 0.1


def test_a_part_without_people_touches_no_box() -> None:
    for seed in range(10):
        left, top, side = real.nobody([((*PERSON[:6], UNSURE),)], random.Random(seed))
        assert left >= 0.3 or top >= 0.8 or left + side <= 0.1 or top + side <= 0.2
    everywhere = ((("person", 0, 0.0, 0.0, 1.0, 1.0, UNSURE)),)
    assert 0.5 <= real.nobody([everywhere], random.Random(1))[2] <= 1


def test_a_mirror_image_has_its_boxes_mirrored() -> None:
    rows: list[Any] = [(PERSON,), ()]
    assert real.mirrored(rows)[0][0][2:6] == pytest.approx((0.7, 0.2, 0.9, 0.8))
    assert real.mirrored(real.mirrored(rows))[0][0] == pytest.approx(PERSON)


def test_clips_that_are_held_back_do_not_teach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 40:] = 255  # the right half is white
    encode.write([picture], tmp_path / "one.mp4", Fraction(1), encode.Encoding())
    same = {"path": "one.mp4", "camera": "a", "licence": "MIT", "boxes": [[]]}
    labels = [same | {"kind": "empty", "crop": [0.5, 0, 1, 1]}, same | {"kind": "vehicle", "held": True}]
    monkeypatch.setattr(real, "LABELS", tmp_path / "labels.json")
    real.LABELS.write_text(json.dumps({"clips": labels}))
    taught, held = (real.load((tmp_path,), held)[0] for held in (False, True))
    assert [clip.kind for clip in taught] == ["empty"]
    assert [clip.kind for clip in held] == ["vehicle"]
    assert taught[0].pictures.shape == held[0].pictures.shape == (1, SIDE, SIDE, 3)
    assert taught[0].pictures.min() > 200
    assert held[0].pictures.min() < 60


@pytest.fixture
def windows() -> RealWindows:
    """Clips of every kind: grain, and one person."""
    grain = np.random.default_rng(0).integers(0, 255, (7, SIDE, SIDE, 3), np.uint8)
    kinds = sorted({kind for kinds in KINDS for kind in kinds})
    return RealWindows([Labelled(kind, grain, ((PERSON,), ())) for kind in kinds], [GREY])


@pytest.mark.long
@pytest.mark.slow
def test_a_window_depends_on_the_dice_alone(windows: RealWindows) -> None:
    one, other, third = (windows.group(random.Random(seed), masked=True) for seed in (1, 1, 2))
    assert torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.keep, other.keep)
    assert not torch.equal(one.pixels, third.pixels)
    count = len(KINDS) + AWAY + len(POSED)
    assert one.pixels.shape == (count, FRAMES, 3, vlm.SIZE, vlm.SIZE)


def test_kinds_without_a_clip_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no clip that shows crowd, empty, fall, upright, vehicle, somebody"):
        RealWindows(*real.load((tmp_path,)))
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


def test_the_language_model_learns_about_real_windows_too(
    tmp_path: Path, small: Path, windows: RealWindows
) -> None:
    plan = LongPlan(steps=2, real=1.0, muon=False)
    trainer = LongTrainer(plan, tmp_path / "run", small, windows=windows)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert trainer.run()
    assert not list(trainer.store.folder.iterdir()), "no rendered clip was needed"
    after = trainer.model.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert {name for name in after if name.endswith("proj.weight") and "language" in name} <= changed
    assert all(name.startswith(("model.language_model", "lm_head")) for name in changed)  # the head is tied
