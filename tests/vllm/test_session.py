"""Sessions on vLLM: questions and text over a held window, equal to the transformers engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lookout.models.engines import EngineError, Question, StreamLostError, TextSettings
from lookout.streams.session import EngineHost, HostSettings, Session, SessionWindow
from lookout.streams.session.types import evidence_of
from tests.tiny_models import checkpoint
from tests.unit.models.engines.scenes import engine as reference
from tests.unit.streams.session.test_session import FIRST, SAMPLING, SECOND, bits, played
from tests.vllm.scenes import apart, planner, slide

pytestmark = pytest.mark.vllm
CLOSE = 5e-5
STREAM = "talk/0"

one_family = pytest.mark.parametrize(
    ("vllm_engine", "family"), [("internvl", "internvl")], indirect=["vllm_engine"], ids=["internvl"]
)


@pytest.fixture
def plan(vllm_engine: Any, family: str) -> Iterator[Any]:
    """A window that both engines hold, four slides from its key window."""
    previous: dict[str, Any] = {}
    for batch in slide(family, planner(vllm_engine), [STREAM], range(5), previous):
        reference(family).run(batch)[0].unwrap()
        vllm_engine.run(batch)[0].unwrap()
    yield previous[STREAM]
    for engine in (reference(family), vllm_engine):
        engine.close_stream(STREAM)
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]


@one_family
def test_greedy_text_over_a_reused_window_is_equal_token_by_token(
    vllm_engine: Any, family: str, plan: Any
) -> None:
    settings = TextSettings(tokens=12)
    texts = ["".join(e.write(plan, "What happens?", settings)) for e in (reference(family), vllm_engine)]
    assert texts[0] == texts[1] != ""
    questions = [Question("q", FIRST)]
    assert apart(vllm_engine.ask(plan, questions), reference(family).ask(plan, questions)) < CLOSE


@one_family
def test_text_is_drawn_and_stopped(vllm_engine: Any, family: str, plan: Any) -> None:
    def text(**how: Any) -> str:
        return "".join(vllm_engine.write(plan, "What happens?", TextSettings(**{"tokens": 12, **how})))

    drawn = [text(temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    whole = text()
    assert text(stop=(whole[3:5],)) == whole[: whole.find(whole[3:5])]


@one_family
def test_a_text_follows_a_json_schema(vllm_engine: Any, family: str, plan: Any) -> None:
    lying = {"lying": {"type": "boolean"}, "people": {"type": "integer", "minimum": 0, "maximum": 9}}
    schema = {"type": "object", "properties": lying, "required": [*lying], "additionalProperties": False}

    def text(seed: int, **rules: Any) -> str:
        how = TextSettings(tokens=40, temperature=1.0, seed=seed, schema=schema | rules)
        return "".join(vllm_engine.write(plan, "What happens?", how))

    for seed in range(3):
        answer = json.loads(text(seed))
        assert isinstance(answer["lying"], bool)
        assert 0 <= answer["people"] <= 9
    before = vllm_engine.ask(plan, [Question("q", FIRST)])
    with pytest.raises(EngineError, match="vLLM rejects the question"):
        text(0, type="nothing that JSON has")
    assert vllm_engine.ask(plan, [Question("q", FIRST)]).answers == before.answers


@one_family
def test_a_question_that_fails_leaves_the_window(
    vllm_engine: Any, family: str, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = vllm_engine.ask(plan, [Question("q", FIRST)])

    def failing(*_: Any) -> Any:
        raise ValueError("the cable fell out")

    for name, ask in (
        ("generate", lambda: vllm_engine.ask(plan, [Question("q", FIRST)])),
        ("stream", lambda: next(vllm_engine.write(plan, "What?", TextSettings()))),
    ):
        monkeypatch.setattr(vllm_engine.backend, name, failing)
        with pytest.raises(EngineError, match=r"the cable fell out.*is still held"):
            ask()
        monkeypatch.undo()
    text = vllm_engine.write(plan, "What?", TextSettings(tokens=500))
    next(text)
    text.close()
    assert vllm_engine.ask(plan, [Question("q", FIRST)]).answers == before.answers
    vllm_engine.close_stream(STREAM)
    with pytest.raises(StreamLostError):
        vllm_engine.ask(plan, [Question("q", FIRST)])


@one_family
def test_a_session_answers_as_on_the_other_engine(
    vllm_engine: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(family)
    windows: list[SessionWindow] = []
    with Session(folder, name="gate", on_window=windows.append, **SAMPLING) as session:
        expected = {question: played(session).ask(question) for question in (FIRST,)}
        expected[SECOND] = session.ask(SECOND)
        text = session.ask("What happens?", tokens=8).text
    # vLLM does not see attention: its evidence shows the newest stride, and not what was looked at.
    blocks, begun = windows[-1].played.blocks, windows[-1].begun
    newest = evidence_of(blocks[-1], begun)
    shown = {begun + frame.time_us / 1e6 for block in blocks for frame in block.frames}
    assert all(answer.evidence and shown.issuperset(answer.evidence) for answer in expected.values())
    monkeypatch.setattr(HostSettings, "load", lambda _: vllm_engine)
    host = EngineHost(HostSettings(folder, "vllm"))
    with Session(engine=host, name="gate", **SAMPLING) as session:
        played(session)
        first = {question: session.ask(question) for question in (SECOND, FIRST)}
        assert {q: bits(session.ask(q)) for q in (FIRST, SECOND)} == {q: bits(a) for q, a in first.items()}
        for question, answer in expected.items():
            assert first[question].p_yes == pytest.approx(answer.p_yes, abs=CLOSE)
            assert (first[question].basis, first[question].evidence) == (answer.basis, newest)
        assert session.ask("What happens?", tokens=8).text == text
    # A job behind the end of the session's stream: the thread refuses what waits when it closes.
    assert host.submit(lambda: vllm_engine.backend.call("lookout_held")).result(60) == [(0, 0)]
    host._thread.close()  # the engine is the fixture's
