"""What `lookout watch add` says of a question."""

from __future__ import annotations

import pytest

from lookout.cli.watches import cameras_text, priority_text, question_advice
from lookout.models import DEMO_QUESTIONS
from lookout.v1.watches_pb2 import Watch
from lookout.wire import PRIORITIES


@pytest.mark.parametrize("question", [*DEMO_QUESTIONS.values(), "Is anyone at the door?"])
def test_a_question_of_yes_or_no_needs_no_advice(question: str) -> None:
    assert question_advice(question) is None


@pytest.mark.parametrize("question", ["How many people are there?", "What happens?", "Describe the room."])
def test_a_question_of_another_kind_is_told_from_one_of_yes_or_no(question: str) -> None:
    assert "not a yes/no question" in (question_advice(question) or "")


def test_a_watch_is_shown_with_its_tenant_and_class() -> None:
    watch = Watch(tenant="acme", priority=PRIORITIES["high"])
    assert (cameras_text(watch), priority_text(watch)) == ("all cameras of tenant acme", ", priority high")
    assert (cameras_text(Watch(cameras=["a", "b"])), priority_text(Watch())) == ("a, b", "")
