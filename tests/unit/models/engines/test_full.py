"""A window computed in full equals the stock model's own forward."""

from __future__ import annotations

import pytest
import torch

from lookout.models.engines import Question, WindowRequest
from lookout.models.windows import Planner, Policy, WindowSettings
from tests.tiny_models import FAMILIES
from tests.unit.models.engines.scenes import block, engine, stock_logits

QUESTIONS = [Question("a", "Is anyone lying?"), Question("b", "Any smoke at the gate?"), Question("c", "?")]


@pytest.mark.parametrize("family", FAMILIES)
def test_full_window_answers_like_the_stock_model(family: str) -> None:
    runner = engine(family)
    blocks = [block(family, "cam/0", index, frames=3) for index in range(4)]
    plan = Planner(runner.layout, WindowSettings(4, Policy.FULL)).plan(blocks)
    answer = runner.run([WindowRequest(plan, blocks, QUESTIONS)])[0].unwrap()
    assert [one.question for one in answer.answers] == ["a", "b", "c"]
    for question, got in zip(QUESTIONS, answer.answers, strict=True):
        logits = stock_logits(family, plan, blocks, runner.suffix(question.text))
        want = logits[[runner.layout.yes, runner.layout.no]]
        torch.testing.assert_close(torch.tensor([got.yes_logit, got.no_logit]), want, atol=2e-4, rtol=1e-4)
        assert got.p_yes == pytest.approx(want.softmax(0)[0].item(), abs=1e-4)
    runner.close_stream("cam/0")
    assert runner.memory() == []
