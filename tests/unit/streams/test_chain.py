"""A chain asked window by window and one in a batch with others are planned and audited alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lookout.models.engines import Engine, Question, StreamLostError, WindowAnswer, WindowRequest, load_engine
from lookout.models.windows import Planner, Policy, WindowSettings
from lookout.streams import (
    AnsweredWindow,
    ChainRule,
    ChainRunner,
    ChainWindow,
    EngineAnswers,
    Player,
    StreamBlock,
    replay_chain,
    run_batch,
)
from tests.prefill_world import SAMPLES, STRIDE_S
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import loaded

BLOCKS, WINDOWS = 3, 9
QUESTIONS = [Question("fall", "Is anyone lying?")]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = load_engine(checkpoint("internvl"))
    yield engine
    engine.close()


def planner_of(engine: Engine) -> Planner:
    settings = WindowSettings(blocks=BLOCKS, key_every=4, samples=SAMPLES, stride_s=STRIDE_S)
    return Planner(engine.layout, settings)


def alone(engine: Engine, rule: ChainRule, camera: str, lost: int | None = None) -> list[AnsweredWindow]:
    runner, chain = ChainRunner(rule, EngineAnswers(engine)), rule.begin()
    blocks = [loaded(camera, index) for index in range(WINDOWS)]
    answered = []
    for index in range(WINDOWS):
        if index == lost:
            engine.close_stream(f"{camera}/0")
        answered.append(runner.ask(chain, blocks[max(0, index - BLOCKS + 1) : index + 1], QUESTIONS))
    runner.forget(f"{camera}/0")
    return answered


def facts(windows: list[AnsweredWindow]) -> list[tuple[int, str, int]]:
    return [(window.plan.window, window.basis, window.plan.since_key) for window in windows]


@pytest.mark.slow
def test_streams_in_a_batch_are_planned_and_audited_as_alone(engine: Engine) -> None:
    rule = ChainRule(planner_of(engine), audit_limit=1e-9)
    cameras = ["cam", "yard"]
    expected = {camera: alone(engine, rule, camera) for camera in cameras}
    chains = {camera: rule.begin() for camera in cameras}
    blocks = {camera: [loaded(camera, index) for index in range(WINDOWS)] for camera in cameras}
    batched: dict[str, list[AnsweredWindow]] = {camera: [] for camera in cameras}
    for index in range(WINDOWS):
        steps = [
            rule.steps(chains[camera], blocks[camera][max(0, index - BLOCKS + 1) : index + 1], QUESTIONS)
            for camera in cameras
        ]
        for camera, window in zip(cameras, run_batch(engine, steps), strict=True):
            batched[camera].append(window)
    for camera in cameras:
        assert facts(batched[camera]) == facts(expected[camera])
        one, other = (
            [(w.answer.answers[0].p_yes, -1.0 if w.audit is None else w.audit.difference) for w in windows]
            for windows in (batched[camera], expected[camera])
        )
        assert one == [pytest.approx(pair, abs=1e-5) for pair in other]
        assert any(window.audit for window in batched[camera])
        assert chains[camera].key_every == 1
        engine.close_stream(f"{camera}/0")


def test_a_player_and_a_runner_ask_the_same_windows(engine: Engine) -> None:
    planner = planner_of(engine)
    expected = alone(engine, ChainRule(planner), "cam", lost=5)
    player = Player(engine, planner)
    played = []
    for index in range(WINDOWS):
        if index == 5:
            engine.close_stream("cam/0")
        played += player.step([StreamBlock.of(loaded("cam", index), SAMPLES)], QUESTIONS)
    player.close()
    windows = [
        AnsweredWindow(w.plan, w.answer) for w in played if w.plan is not None and w.answer is not None
    ]
    assert facts(windows) == facts(expected)
    assert facts(windows)[5][1] == "key"
    assert [w.answer.answers[0].p_yes for w in windows] == pytest.approx(
        [w.answer.answers[0].p_yes for w in expected], abs=1e-6
    )


def test_a_window_that_is_computed_whole_after_a_burst_begins_a_chain(engine: Engine) -> None:
    """It costs as much as a key window, so that the stream's next key stride is left out; played again, the
    windows are the same ones."""
    settings = WindowSettings(
        BLOCKS, Policy.FRONT, 8, refresh_frames=0, refresh_surplus=1e-9, samples=SAMPLES, stride_s=STRIDE_S
    )
    rule = ChainRule(Planner(engine.layout, settings))
    windows = alone(engine, rule, "cam")
    whole = [window.plan.window for window in windows if window.basis == "key"]
    bursts = [index for index in whole[1:] if not rule.planner.is_key("cam/0", index)]
    assert bursts, "blocks of other sizes leave"
    assert all(window.plan.since_key == 0 for window in windows if window.plan.window in whole)
    assert not any(window.basis == "full" for window in windows)
    blocks = [StreamBlock.of(loaded("cam", index), SAMPLES) for index in range(WINDOWS)]
    again = replay_chain(
        engine,
        rule.planner,
        blocks.__getitem__,
        [ChainWindow(w.plan.window, QUESTIONS, since_key=w.plan.since_key) for w in windows],
    )
    for window, replayed in zip(windows, again, strict=True):
        assert replayed.answered is not None
        assert facts([replayed.answered]) == facts([window])
        assert replayed.answered.answer.answers[0].p_yes == pytest.approx(
            window.answer.answers[0].p_yes, abs=1e-5
        )


class AlwaysLost:
    """A fake engine that holds nothing."""

    def __init__(self) -> None:
        self.requests: list[WindowRequest] = []

    def answer(self, request: WindowRequest) -> WindowAnswer:
        self.requests.append(request)
        return WindowAnswer("cam/0", request.plan.window, error=StreamLostError("lost"))

    def forget(self, stream: str) -> None:
        """Nothing to free."""


def test_a_window_is_tried_again_once_as_a_key_window(engine: Engine) -> None:
    rule, answers = ChainRule(planner_of(engine)), AlwaysLost()
    runner, chain = ChainRunner(rule, answers), rule.begin()
    chain.plan = rule.planner.plan([loaded("cam", 0)])
    with pytest.raises(StreamLostError):
        runner.ask(chain, [loaded("cam", 0), loaded("cam", 1)], QUESTIONS, key=False)
    assert [request.plan.key for request in answers.requests] == [False, True]
    assert chain.plan is None
