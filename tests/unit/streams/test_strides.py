"""The preset `strides`: what a window answers is the largest of its strides, each asked alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lookout.models.engines import Engine, Question, WindowAnswer, WindowRequest, load_engine
from lookout.models.presets import preset_of
from lookout.models.windows import Planner, Policy, StrideBlock, WindowSettings
from lookout.streams import (
    AnsweredWindow,
    ChainRule,
    ChainRunner,
    ChainWindow,
    EngineAnswers,
    Player,
    StreamBlock,
    replay_chain,
)
from tests.prefill_world import SAMPLES, STRIDE_S
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import loaded

BLOCKS, WINDOWS = 3, 6
QUESTIONS = [Question("fall", "Is anyone lying?"), Question("car", "Is a car in view?")]
SETTINGS = WindowSettings(
    policy=Policy.PRUNE_ONLY, blocks=BLOCKS, samples=SAMPLES, stride_s=STRIDE_S, alone=True
)


class Counted(EngineAnswers):
    """An engine that notes what it was asked."""

    requests: list[WindowRequest]

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """The answer to one window."""
        self.requests.append(request)
        return super().answer(request)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = load_engine(checkpoint("internvl"))
    yield engine
    engine.close()


def _counted(engine: Engine) -> Counted:
    answers = Counted(engine)
    object.__setattr__(answers, "requests", [])
    return answers


def _blocks() -> list[StrideBlock]:
    return [loaded("gate", index) for index in range(WINDOWS)]


def _window(blocks: list[StrideBlock], index: int) -> list[StrideBlock]:
    return blocks[max(0, index - BLOCKS + 1) : index + 1]


def _dense(engine: Engine, block: StrideBlock, question: Question) -> float:
    """p(yes) of a stride as a whole window of its own, under the same masks."""
    settings = WindowSettings(1, Policy.PRUNE_ONLY, samples=SAMPLES, stride_s=STRIDE_S)
    request = WindowRequest(Planner(engine.layout, settings).plan([block]), [block], [question], keep=False)
    return engine.run([request])[0].unwrap().answers[0].p_yes


def _p(window: AnsweredWindow) -> list[float]:
    return [answer.p_yes for answer in window.answer.answers]


@pytest.mark.slow
def test_a_window_answers_as_the_highest_of_its_strides_that_are_whole_windows(engine: Engine) -> None:
    rule, answers = ChainRule(Planner(engine.layout, SETTINGS)), _counted(engine)
    runner, chain, blocks = ChainRunner(rule, answers), rule.begin(), _blocks()
    for index in range(WINDOWS):
        window = runner.ask(chain, _window(blocks, index), QUESTIONS)
        for question, got in zip(QUESTIONS, window.answer.answers, strict=True):
            exact = [_dense(engine, block, question) for block in _window(blocks, index)]
            assert got.p_yes == pytest.approx(max(exact), abs=1e-6)
            assert got.question == question.id
        assert (window.plan.window, window.answer.window, window.basis) == (index, index, "strides")
        assert window.plan.blocks == tuple(block.index for block in _window(blocks, index))
    assert [request.plan.blocks for request in answers.requests] == [(index,) for index in range(WINDOWS)]
    assert engine.held("gate/0") is None  # no KV is kept


@pytest.mark.slow
def test_what_is_not_known_is_asked_again(engine: Engine) -> None:
    """After a restart every stride of the window, of a new question every stride, and with as much cost."""
    rule, answers, blocks = ChainRule(Planner(engine.layout, SETTINGS)), _counted(engine), _blocks()
    runner, chain = ChainRunner(rule, answers), rule.begin()
    whole = [runner.ask(chain, _window(blocks, index), QUESTIONS) for index in range(WINDOWS)]
    answers.requests.clear()
    fresh = runner.ask(rule.begin(), _window(blocks, WINDOWS - 1), QUESTIONS)
    assert _p(fresh) == pytest.approx(_p(whole[-1]), abs=1e-6)
    assert fresh.plan.digest == whole[-1].plan.digest
    assert len(answers.requests) == BLOCKS
    assert fresh.answer.cost.token_layers > whole[-1].answer.cost.token_layers
    answers.requests.clear()
    chain = rule.begin()
    runner.ask(chain, _window(blocks, 4), QUESTIONS[:1])
    answers.requests.clear()
    more = runner.ask(chain, _window(blocks, 5), QUESTIONS)
    assert [tuple(one.questions) for one in answers.requests] == [(QUESTIONS[1],)] * 2 + [tuple(QUESTIONS)]
    assert _p(more) == pytest.approx(_p(whole[-1]), abs=1e-6)
    answers.requests.clear()
    fewer = runner.ask(chain, _window(blocks, 5), QUESTIONS[:1])
    assert len(answers.requests) == 1  # the newest stride, so that the window has an answer of the engine
    assert _p(fewer) == pytest.approx(_p(whole[-1])[:1], abs=1e-6)


@pytest.mark.slow
def test_windows_are_replayed_from_their_blocks_alone(engine: Engine) -> None:
    rule, blocks = ChainRule(Planner(engine.layout, SETTINGS)), _blocks()
    runner, chain = ChainRunner(rule, EngineAnswers(engine)), rule.begin()
    whole = [runner.ask(chain, _window(blocks, index), QUESTIONS) for index in range(WINDOWS)]
    later = [ChainWindow(window.plan.window, QUESTIONS, since_key=0) for window in whole[2:]]
    again = list(replay_chain(engine, rule.planner, lambda k: StreamBlock.of(blocks[k], SAMPLES), later))
    for window, replayed in zip(whole[2:], again, strict=True):
        assert replayed.answered is not None
        assert _p(replayed.answered) == pytest.approx(_p(window), abs=1e-6)


@pytest.mark.slow
def test_strides_without_frames_are_passed_over(engine: Engine) -> None:
    rule, blocks = ChainRule(Planner(engine.layout, SETTINGS)), _blocks()
    blocks[1], blocks[2] = replace(blocks[1], frames=()), replace(blocks[2], frames=())
    runner, chain = ChainRunner(rule, EngineAnswers(engine)), rule.begin()
    for index in range(4):
        window = runner.ask(chain, _window(blocks, index), QUESTIONS)
        shown = [block for block in _window(blocks, index) if block.frames]
        exact = max(_dense(engine, block, QUESTIONS[0]) for block in shown)
        assert window.answer.answers[0].p_yes == pytest.approx(exact, abs=1e-6)
        assert window.plan.window == index


@pytest.mark.slow
def test_a_player_answers_many_streams_so(engine: Engine) -> None:
    rule = ChainRule(Planner(engine.layout, SETTINGS))
    player = Player(engine, rule.planner)
    streams = {name: [loaded(name, index) for index in range(WINDOWS)] for name in ("gate", "yard")}
    for index in range(WINDOWS):
        played = player.step([StreamBlock.of(streams[name][index], SAMPLES) for name in streams], QUESTIONS)
        for name, outcome in zip(streams, played, strict=True):
            if outcome.answer is None:
                continue
            window = _window(streams[name], index)
            exact = max(_dense(engine, block, QUESTIONS[1]) for block in window)
            assert outcome.answer.answers[1].p_yes == pytest.approx(exact, abs=1e-6)


def test_the_preset_has_the_defaults_masks_and_no_key_windows() -> None:
    preset = preset_of("strides")
    assert preset.masks == preset_of("default").masks
    assert preset.windows.alone
    assert not preset_of("default").windows.alone
