"""Two runs of the same windows differ by rounding alone, and that is what the tolerance is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lookout.models import DEMO_QUESTIONS, find_model
from lookout.models.engines import Engine, Question, WindowAnswer, WindowRequest, load_engine
from lookout.models.families import load_tower
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Planner, StrideBlock
from lookout.past.verification import rerun_spread
from lookout.pruning import PrunePolicy
from lookout.streams import read_clip, stream_blocks
from watchbench import cameras

QUESTIONS = [Question(text, text) for text in DEMO_QUESTIONS.values()]


@pytest.fixture(scope="module")
def chain() -> list[StrideBlock]:
    tower = load_tower(find_model())
    film = cameras.FILMS / "room-5d21eaf5c855.mp4"
    clip = read_clip(film, tower.grid)
    blocks = stream_blocks(
        "room/0", clip.frames, tower, PrunePolicy(), samples=4, step_us=clip.step_us, window_blocks=5
    )
    return [member.block for member in blocks][:8]


class RoundingEngine:
    """A fake: the real engine, whose answers move by 1e-3 for every other stream of the batch."""

    def __init__(self, real: Engine) -> None:
        self.real = real

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        moved = 1e-3 * (len(requests) - 1)
        return [
            replace(each, answers=tuple(replace(one, p_yes=one.p_yes + moved) for one in each.answers))
            for each in self.real.run(requests)
        ]

    def close_stream(self, stream: str) -> None:
        self.real.close_stream(stream)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_two_runs_differ_by_rounding_alone(chain: list[StrideBlock], dtype: str) -> None:
    engine = load_engine(find_model(), dtype=getattr(torch, dtype))
    planner = Planner(engine.layout, PRESETS[DEFAULT_PRESET])
    found = rerun_spread(engine, planner, [chain], QUESTIONS)
    assert found <= {"float32": 1e-4, "bfloat16": 0.05}[dtype]
    assert rerun_spread(engine, planner, [chain], QUESTIONS) == found
    assert rerun_spread(engine, planner, [], QUESTIONS) == 0.0
    engine.close()


@pytest.mark.slow
def test_what_a_batch_does_to_answers_is_the_spread(chain: list[StrideBlock]) -> None:
    engine = load_engine(find_model())
    planner = Planner(engine.layout, PRESETS[DEFAULT_PRESET])
    fake: Any = RoundingEngine(engine)
    assert rerun_spread(fake, planner, [chain], QUESTIONS) == pytest.approx(7e-3, abs=1e-4)
    engine.close()
