"""Two runs of the same windows differ by rounding alone, and that is what the tolerance is made of."""

from __future__ import annotations

import pytest
import torch

from lookout.engines import Question, load_engine
from lookout.evaluation.chain import read_clip, stride_blocks
from lookout.models import DEMO_QUESTIONS, find_model
from lookout.pruning import PrunePolicy
from lookout.verification import rerun_spread
from lookout.vision import load_tower
from lookout.windows import DEFAULT_PRESET, PRESETS, Planner, StrideBlock
from watchbench import cameras

QUESTIONS = [Question(text, text) for text in DEMO_QUESTIONS.values()]


@pytest.fixture(scope="module")
def chain() -> list[StrideBlock]:
    tower = load_tower(find_model())
    film = cameras.FILMS / "room-5d21eaf5c855.mp4"
    return stride_blocks("room/0", read_clip(film, tower.grid), tower, PrunePolicy(), 4)[:8]


@pytest.mark.parametrize(("dtype", "least", "limit"), [("float32", 0.0, 1e-4), ("bfloat16", 1e-6, 0.2)])
def test_the_spread_of_a_dtype(chain: list[StrideBlock], dtype: str, least: float, limit: float) -> None:
    engine = load_engine(find_model(), dtype=getattr(torch, dtype))
    planner = Planner(engine.layout, PRESETS[DEFAULT_PRESET])
    found = rerun_spread(engine, planner, [chain], QUESTIONS)
    assert least <= found < limit
    assert rerun_spread(engine, planner, [chain], QUESTIONS) == found
    assert rerun_spread(engine, planner, [], QUESTIONS) == 0.0
    engine.close()
