"""`lookout model check --calibrate`: which setting is chosen, what it costs, and the command's material."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lookout.cli.model_choices import _show, read_material
from lookout.cli.options import CliError
from lookout.cli.up import parse_settings
from lookout.models import WindowDefaults, find_model, listed_questions
from lookout.models.families import load_tower
from lookout.pruning import PrunePolicy
from lookout.pruning.settings import PruningSettings
from tests.tiny_models import checkpoint
from tests.unit.video.segments.clips import encode
from watchbench.evaluation.choices import (
    DEFAULT,
    FULL,
    STRIDES,
    Choices,
    Comparison,
    Tally,
    candidates,
    choose,
    prefills,
)
from watchbench.evaluation.clip_windows import ClipError, encode_clip
from watchbench.evaluation.evaluate import DENSE, PRUNED, REUSED, evaluate
from watchbench.evaluation.intervals import counted
from watchbench.evaluation.labels import LabelledClip

QUESTIONS = ["Anyone?", "Smoke?"]


def tally(cost: float, counts: list[tuple[int, int, int, int]], dp: float = 0.1) -> Tally:
    """A setting that answers both questions alike on every clip."""
    return Tally([[one, one] for one in counts], [[dp, dp]] * len(counts), [cost] * len(counts))


def compared(other: Tally, own: Tally, *, labelled: bool = True) -> Comparison:
    full = tally(10.0, [(2, 0, 0, 2)] * len(own.cost), 0.0)
    return Comparison({FULL: full, DEFAULT: own, STRIDES: other}, DEFAULT, FULL, QUESTIONS, labelled)


RIGHT, MISSED = (2, 0, 0, 2), (0, 2, 0, 2)


@pytest.mark.parametrize(
    ("clips", "own", "other", "cost", "chosen", "verdict"),
    [
        (40, [RIGHT, MISSED], [RIGHT, RIGHT], 5.0, STRIDES, "better"),  # although dearer
        (40, [RIGHT, RIGHT], [RIGHT, MISSED], 1.0, DEFAULT, "no"),
        (8, [RIGHT, MISSED], [RIGHT, RIGHT], 1.0, DEFAULT, "too few clips"),
        (40, [RIGHT, RIGHT], [RIGHT, RIGHT], 1.0, DEFAULT, "no"),  # up to three of forty may differ
        (160, [RIGHT, RIGHT], [RIGHT, RIGHT], 1.0, STRIDES, "as good, cheaper"),
        (160, [RIGHT, RIGHT], [RIGHT, RIGHT], 1.95, DEFAULT, "no"),  # not cheaper enough
        (40, [(0, 0, 0, 4)], [(0, 0, 0, 4)], 1.0, DEFAULT, None),  # nothing was true: F1 is undefined
    ],
)
def test_a_default_stays_unless_another_is_shown_to_be_better(  # noqa: PLR0917
    clips: int,
    own: list[tuple[int, int, int, int]],
    other: list[tuple[int, int, int, int]],
    cost: float,
    chosen: str,
    verdict: str | None,
) -> None:
    repeat = clips // len(own)
    found = compared(tally(cost, other * repeat), tally(2.0, own * repeat))
    row = found.row(STRIDES)
    assert row.get("verdict") == verdict
    assert row["cost"] == cost / 10
    assert found.best([STRIDES]) == found.best([STRIDES], [1]) == chosen


@pytest.mark.parametrize(
    ("dp", "cost", "chosen"),
    [(0.05, 1.0, STRIDES), (0.05, 3.0, DEFAULT), (0.105, 1.0, STRIDES), (0.2, 1.0, DEFAULT)],
)
def test_without_labels_answers_near_to_full_windows_justify_no_more_flops(
    dp: float, cost: float, chosen: str
) -> None:
    own, other = tally(2.0, [RIGHT] * 20, 0.1), tally(cost, [RIGHT] * 20, dp)
    found = compared(other, own, labelled=False)
    assert found.best([STRIDES]) == chosen
    assert found.row(STRIDES)["dp"] == pytest.approx(dp)
    assert found.row(STRIDES)["better by"] == pytest.approx(0.1 - dp)


def test_a_preset_of_one_question_is_not_the_deployments() -> None:
    own = Tally([[MISSED, RIGHT]] * 40, [[0.1, 0.1]] * 40, [2.0] * 40)
    other = Tally([[RIGHT, MISSED]] * 40, [[0.1, 0.1]] * 40, [1.0] * 40)
    recordings = Comparison(dict.fromkeys(prefills(), own), "rho 0.5, random", "rho 1", QUESTIONS, True)
    windows = Comparison({FULL: own, DEFAULT: own, STRIDES: other}, DEFAULT, FULL, QUESTIONS, True)
    choices = Choices(windows, recordings, {FULL: "x", DEFAULT: "", STRIDES: "y"}, 40)
    assert choices.presets == {"Anyone?": STRIDES, "Smoke?": DEFAULT}
    assert choices.setting == DEFAULT
    told = choices.as_json(Path("/m"))
    assert told["line"] == "lookout up --model /m; lookout analyze --model /m"
    console = Console(record=True, width=200)
    _show(console, json.loads(json.dumps(told)))
    assert "Add the watches that strides answer" in console.export_text()


def test_every_setting_is_one_that_the_fleet_takes() -> None:
    found = candidates(WindowDefaults())
    assert {"default", "faithful", "codecsight", "strides"} <= set(found)
    for candidate in found.values():
        words = candidate.options.split()
        preset = words[1] if "--preset" in words else "default"
        pairs = [word for word in words if "=" in word]
        common, _ = parse_settings(pairs, preset, None)
        fields = {name: common[name] for name in common if name in PruningSettings.model_fields}
        assert PruningSettings.model_validate(fields).policy == candidate.masks


@pytest.mark.slow
def test_settings_are_measured_as_lookout_eval_does(tmp_path: Path) -> None:
    """The same counts, |dp| and, but for key windows, FLOPs."""
    path = tmp_path / "a.mp4"
    path.write_bytes(encode(frames=20, fps=2))
    clip = LabelledClip(path, {"Anyone?": ((0.0, 5.0),), "Smoke?": ()})
    sampling = {"window_s": 6.0, "stride_s": 2.0, "fps": 1.0}
    found = choose(checkpoint("internvl"), [clip], QUESTIONS, labelled=True, **sampling)
    expected = evaluate(checkpoint("internvl"), [clip], **sampling)
    for name, way in ((FULL, DENSE), ("whole windows", PRUNED), (DEFAULT, REUSED)):
        mine, theirs = found.windows.tallies[name], expected.ways[way]
        assert mine.counts == [[counted(s.p, s.true) for s in theirs.answers.values()]]
        assert np.mean(mine.dp) == pytest.approx(np.mean(theirs.apart), abs=1e-6)
    assert found.windows.tallies[FULL].dp == [[0.0, 0.0]]
    cost = {name: found.windows.cost(name) for name in found.windows.tallies}
    assert cost[STRIDES] < cost[DEFAULT] < cost["whole windows"] <= cost[FULL] == 1
    assert found.recordings.cost("rho 0.2, random") < found.recordings.cost("rho 0.5, random") < 1
    assert found.setting == DEFAULT  # one clip decides nothing
    assert " --set fps=1 --set stride_s=2 --set window_s=6;" in found.line(Path("/m"))


def test_a_clip_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    clip = tmp_path / "a.mp4"
    clip.write_bytes(b"hello")
    tower = load_tower(checkpoint("internvl"))
    with pytest.raises(ClipError, match=r"a\.mp4: .*not a video"):
        encode_clip(clip, tower, [PrunePolicy()], WindowDefaults())


def test_material_that_cannot_be_used_gets_one_clear_error(tmp_path: Path) -> None:
    clip = tmp_path / "a.mp4"
    clip.write_bytes(b"-")
    tiny = find_model()
    listed = listed_questions(tiny)
    assert listed is not None
    material = read_material(tiny, tmp_path, ())
    assert list(material.questions) == [question.wordings[0] for question in listed]
    assert [one.path for one in material.clips] == [clip]
    assert read_material(tiny, clip, ("A?", "B?", "A?")).questions == ["A?", "B?"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "labels.csv").write_text("clip,question,answer\na.mp4,Anyone?,yes\n")
    for source, asked, words in (
        (tmp_path / "gone", (), "gone does not exist"),
        (tmp_path / "gone.csv", (), "gone.csv does not exist"),
        (tmp_path / "empty", (), "empty has no clip"),
        (tmp_path / "labels.csv", ("A?",), "the labels file already has the questions"),
    ):
        with pytest.raises(CliError, match=words):
            read_material(tiny, source, asked)
    with pytest.raises(CliError, match="give them with --question"):
        read_material(checkpoint("internvl"), clip, ())
