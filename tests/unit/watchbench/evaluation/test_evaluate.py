"""`lookout eval`: labels, truth of windows, scores, thresholds, and the three ways on real code."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import watchbench
from bench.floors import DissimilarTokens
from lookout.cli.app import app
from lookout.models import find_model
from lookout.pruning import PolicyError
from tests.tiny_models import FEW_FAMILIES, published
from watchbench.evaluation.evaluate import DENSE, PRUNED, REUSED, evaluate
from watchbench.evaluation.labels import LabelError, LabelledClip, read_labels
from watchbench.evaluation.scores import LabelledAnswers, reliability_plot

FILMS = Path(next(iter(watchbench.__path__))) / "films"
HEADER = "clip,question,answer,start_s,end_s\n"


def labelled(folder: Path, rows: str) -> Path:
    """A labels file beside a short clip."""
    for film in sorted(FILMS.glob("doorway*.mp4")):
        target = folder / "door.mp4"
        if not target.exists():
            target.symlink_to(film)
    path = folder / "labels.csv"
    path.write_text(HEADER + rows)
    return path


def test_labels_are_read_with_their_spans(tmp_path: Path) -> None:
    rows = "door.mp4,Anyone?,yes,2,5\ndoor.mp4,Anyone?,YES,9,\ndoor.mp4,Any vehicle?,no,,\n"
    (clip,) = read_labels(labelled(tmp_path, rows))
    assert clip.spans == {"Anyone?": ((2.0, 5.0), (9.0, 1e9)), "Any vehicle?": ()}
    assert clip.truth("Anyone?", 0, 4) is True
    assert clip.truth("Anyone?", 0, 2.2) is None  # too little of it to say
    assert clip.truth("Anyone?", 5.6, 8.4) is False
    assert clip.truth("Any vehicle?", 0, 100) is False
    assert clip.truth("Smoke?", 0, 100) is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("gone.mp4,Anyone?,yes,,\n", "line 2: there is no clip"),
        ("door.mp4,Anyone?,maybe,,\n", "the answer is yes or no, not 'maybe'"),
        ("door.mp4,,yes,,\n", "line 2: the question is empty"),
        ("door.mp4,Anyone?,yes,5,2\n", "start_s 5 is not before end_s 2"),
        ("door.mp4,Anyone?,yes,soon,\n", "start_s 'soon' is not a number"),
        ("", "has no rows"),
    ],
)
def test_wrong_labels_get_one_clear_error(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(LabelError, match=words):
        read_labels(labelled(tmp_path, rows))
    (tmp_path / "labels.csv").write_text("clip,answer\n")
    with pytest.raises(LabelError, match="lacks the columns question"):
        read_labels(tmp_path / "labels.csv")


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_a_threshold_is_the_smallest_that_gives_the_precision(
    told: list[tuple[int, bool]], wanted: int
) -> None:
    answers, precision = LabelledAnswers(), wanted / 20
    for p, true in told:
        answers.add(p / 20, true)

    def reached(threshold: float) -> bool:
        above = [true for p, true in told if p / 20 > threshold]
        return bool(above) and sum(above) / len(above) >= precision

    edges = sorted({-1.0, *(p / 20 for p, _ in told)})
    allowed = [edge for edge in edges if reached(edge)]
    found = answers.threshold_for(precision)
    if not allowed or not any(true for _, true in told):
        assert found is None or reached(found)
    else:
        assert found is not None
        assert reached(found) or found == 0.0
        above = sum(p / 20 > found for p, _ in told)
        assert above == sum(p / 20 > min(allowed) for p, _ in told) or min(allowed) == -1.0


def test_scores_are_the_textbooks() -> None:
    answers, draw = LabelledAnswers(), random.Random(0)
    for _ in range(4000):
        p = draw.random()
        answers.add(p, draw.random() < p)  # calibrated by construction
    assert answers.calibration_error < 0.05
    said = np.array(answers.p) > 0.5
    true = np.array(answers.true)
    precision, recall = true[said].mean(), said[true].mean()
    assert answers.f1() == pytest.approx(2 * precision * recall / (precision + recall))
    assert LabelledAnswers([0.9], [False]).f1() is None
    assert "<svg" in reliability_plot(answers, "a < b")
    assert "a &lt; b" in reliability_plot(answers, "a < b")


@pytest.mark.long
@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_every_family_is_scored_in_three_ways(family: str, tmp_path: Path) -> None:
    """A random model of published shape: no F1 to speak of, but every way answers every window."""
    path = labelled(tmp_path, "door.mp4,Anyone?,yes,0,4\ndoor.mp4,Smoke?,no,,\n")
    (clip,) = read_labels(path)
    found = evaluate(published(family), [clip], window_s=16, stride_s=8, fps=0.5)
    assert set(found.ways) == {DENSE, PRUNED, REUSED}
    assert found.windows > 2
    counts = {len(one.p) for way in found.ways.values() for one in way.answers.values()}
    assert len({len(way.answers["Smoke?"].p) for way in found.ways.values()}) == 1
    assert max(counts) == found.windows
    told = found.as_json()["ways"]
    assert told[DENSE]["tokens_kept"] == 1.0
    assert told[DENSE]["flops_share"] == 1.0
    assert told[DENSE]["dp"] == 0.0
    assert told[PRUNED]["tokens_kept"] == told[REUSED]["tokens_kept"] < 1
    assert told[REUSED]["flops_share"] < told[PRUNED]["flops_share"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", pytest.param("codecsight", marks=pytest.mark.long)])
def test_the_tiny_model_is_scored_and_calibrated_by_the_command(preset: str, tmp_path: Path) -> None:
    question = "Is a person in view?"
    path = labelled(tmp_path, f"door.mp4,{question},yes,0,\ndoor.mp4,Is a vehicle in view?,no,,\n")
    plot = tmp_path / "plot.svg"
    words = ["eval", "--model", str(find_model()), "--labels", str(path), "--plot", str(plot)]
    result = CliRunner().invoke(app, [*words, "--preset", preset, "--window", "10", "--stride", "5"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output.strip().splitlines()[-1])
    assert told["clips"] == 1
    assert set(told["ways"]) == {DENSE, PRUNED, REUSED}
    assert set(told["calibration"]["thresholds"]) == {question, "Is a vehicle in view?"}
    assert plot.read_text().startswith("<svg")
    # The paper keeps what has moved since the anchor; this clip moves a little, and the default keeps less.
    assert (told["ways"][REUSED]["tokens_kept"] > 0.8) == (preset == "codecsight")


def test_a_clip_without_answers_is_not_scored(tmp_path: Path) -> None:
    clip = LabelledClip(tmp_path / "x.mp4")
    assert clip.truth("Anyone?", 0, 10) is None


@pytest.mark.long
def test_a_policy_after_the_tower_saves_prefill_and_no_vision(tmp_path: Path) -> None:
    labels = labelled(tmp_path, "door.mp4,Anyone?,yes,2,5\n")
    clips = read_labels(labels)
    ways = evaluate(find_model(None), clips, fps=1, stride_s=4, window_s=8, policy=DissimilarTokens()).ways
    assert ways[PRUNED].vision_flops == ways[DENSE].vision_flops
    assert ways[PRUNED].prefill_flops < 0.8 * ways[DENSE].prefill_flops
    assert 0.5 < ways[PRUNED].kept / ways[PRUNED].total < 0.8
    wrong = CliRunner().invoke(
        app, ["eval", "--model", str(find_model(None)), "--labels", str(labels), "--policy", "none"]
    )
    assert isinstance(wrong.exception, PolicyError)
