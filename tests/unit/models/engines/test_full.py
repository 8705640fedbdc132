"""A window computed in full equals the stock model's own forward."""

from __future__ import annotations

import pytest
import torch

from lookout.models.engines import Question, WindowRequest
from lookout.models.windows import Planner, Policy, WindowSettings
from tests.tiny_models import FAMILIES
from tests.unit.models.engines.scenes import block, engine, stock_attention, stock_logits

QUESTIONS = [Question("a", "Is anyone lying?"), Question("b", "Any smoke at the gate?"), Question("c", "?")]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", [Policy.FULL, Policy.REUSE_ALL])
def test_an_answer_names_the_frames_that_the_stock_model_attends_to(family: str, policy: Policy) -> None:
    """The oracle is the stock model's eager attention of the question's last row."""
    runner = engine(family)
    planner = Planner(runner.layout, WindowSettings(3, policy, key_every=1000))
    history = [block(family, "look/0", index, frames=3) for index in range(4)]
    plan, blocks = None, history[:3]
    for end in (3, 4) if policy is Policy.REUSE_ALL else (3,):
        blocks = history[end - 3 : end]
        plan = planner.plan(blocks, plan)
        answer = runner.run([WindowRequest(plan, blocks, QUESTIONS)])[0].unwrap()
    assert plan is not None
    for question, got in zip(QUESTIONS, answer.answers, strict=True):
        assert len(got.frames) == 3
        assert [one.share for one in got.frames] == sorted((one.share for one in got.frames), reverse=True)
        if policy is Policy.REUSE_ALL:
            continue  # reused rows are not those of the stock model
        weights = stock_attention(family, plan, blocks, runner.suffix(question.text))
        shares = {
            (part.block, part.frame): float(weights[part.visual_start : part.visual_stop].max())
            for part in plan.parts[1:]
        }
        best = sorted(shares.values(), reverse=True)[:3]
        assert [one.share for one in got.frames] == pytest.approx(best, abs=2e-4)
        assert [shares[one.block, one.frame] for one in got.frames] == pytest.approx(best, abs=2e-4)
    held = planner.hold(plan)
    asked = runner.ask(plan, QUESTIONS[:1]).answers[0]
    assert [one.frame for one in asked.frames] == [one.frame for one in answer.answers[0].frames]
    assert held.window == plan.window
    runner.close_stream("look/0")


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
