"""What `lookout watch add` says of a question."""

from __future__ import annotations

import pytest

from lookout.administration import WatchError, check_gate
from lookout.cli.watches import (
    cameras_text,
    gate_of,
    priority_text,
    question_advice,
    rule_text,
)
from lookout.models import DEMO_QUESTIONS, TINY, QuestionError, check_question
from lookout.rules import RuleError, check_watch
from lookout.structured import structured
from lookout.v1.watches_pb2 import Gate, Watch
from lookout.wire import PRIORITIES
from tests.tiny_models import checkpoint


@pytest.mark.parametrize("question", [*DEMO_QUESTIONS.values(), "Is anyone at the door?"])
def test_a_question_of_yes_or_no_needs_no_advice(question: str) -> None:
    assert question_advice(question) is None


@pytest.mark.parametrize("question", ["How many people are there?", "What happens?", "Describe the room."])
def test_a_question_of_another_kind_is_told_from_one_of_yes_or_no(question: str) -> None:
    assert "not a yes/no question" in (question_advice(question) or "")


def test_a_question_with_allowed_answers_needs_no_advice_and_its_answers_fit_the_model() -> None:
    question = structured("How many people are in view?", "0..5", "count >= 3")
    assert question_advice(question) is None
    assert check_question(checkpoint("internvl"), question) == question


def test_the_bundled_model_was_not_trained_for_allowed_answers() -> None:
    question = structured("Is a person in view?", "0..5", "count >= 3")
    with pytest.raises(QuestionError, match="was not trained for"):
        check_question(TINY, question)
    assert check_question(TINY, question, anyway=True) == question
    with pytest.raises(QuestionError, match="no text"):
        check_question(TINY, question, anyway=True, text=True)
    with pytest.raises(QuestionError, match="no tokens for the answer “ajar”"):
        check_question(TINY, structured("Is it open?", "ajar, shut", "class = shut"), anyway=True)


def test_a_watch_with_allowed_answers_writes_no_sentence() -> None:
    question = structured("How many?", "0..5", "count >= 3")
    check_watch(Watch(id="count", question=question))
    with pytest.raises(RuleError, match="describe"):
        check_watch(Watch(id="count", question=question, describe=True))
    with pytest.raises(RuleError, match="holds for no"):
        check_watch(Watch(id="count", question=question.replace(">= 3", ">= 9")))


def test_a_watch_is_shown_with_its_tenant_and_class() -> None:
    watch = Watch(tenant="acme", priority=PRIORITIES["high"])
    assert (cameras_text(watch), priority_text(watch)) == ("all cameras of tenant acme", ", priority high")
    assert (cameras_text(Watch(cameras=["a", "b"])), priority_text(Watch())) == ("a, b", "")


def test_a_watch_of_strides_is_shown_as_one() -> None:
    assert (
        rule_text(Watch(id="fall", question="Is it?", asked="ASKED_STRIDES"))
        == "p ≥ 0.5, asked about strides"
    )


def test_a_watch_is_shown_with_its_gate() -> None:
    watch = Watch(id="fall", question="Is it?", gate=gate_of("person", True))
    assert rule_text(watch) == "p ≥ 0.5, while person answers yes and something moves"
    assert gate_of("", False) is None


@pytest.mark.parametrize(
    ("gate", "words"),
    [("nobody", "watch nobody does not exist"), ("two", "fall waits for two waits for one waits for fall")],
)
def test_a_gate_that_would_never_open_is_refused(gate: str, words: str) -> None:
    standing = {
        "one": Watch(id="one", gate=Gate(watch="fall")),
        "two": Watch(id="two", gate=Gate(watch="one")),
        "free": Watch(id="free", gate=Gate(watch="gone")),
        "left": Watch(id="left", gate=Gate(watch="right")),
        "right": Watch(id="right", gate=Gate(watch="left")),
    }
    with pytest.raises(WatchError, match=words):
        check_gate(Watch(id="fall", gate=Gate(watch=gate)), standing)
    for name in ("free", "left"):  # what others wait for is not this watch's fault
        check_gate(Watch(id="fall", gate=Gate(watch=name)), standing)
