"""What may be asked of the model that comes with Lookout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lookout import models
from lookout.models.questions import QuestionError

QUESTION = "Is a person in view?"


def test_a_generator_gives_its_questions_as_a_list_does() -> None:
    assert models.check_questions(models.find_model(None), (text for text in [QUESTION])) == (QUESTION,)


@pytest.mark.parametrize("questions", [QUESTION, b"Is it?", None, 5, [5], [None]])
def test_what_is_no_list_of_texts_is_refused(questions: Any) -> None:
    with pytest.raises(QuestionError, match=r"a list of texts|a question is a text"):
        models.check_questions(models.find_model(None), questions)


@pytest.mark.parametrize("question", [QUESTION * 51, "a" * 1_000_000])
def test_a_question_that_no_watch_could_ask_is_refused_and_not_echoed(question: str) -> None:
    with pytest.raises(QuestionError, match=r"^the question has [0-9]+ characters; 1000 is the limit$"):
        models.check_question(models.find_model(None), question)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_a_question_that_is_empty_is_called_so(question: str, tmp_path: Path) -> None:
    for folder in (models.find_model(None), tmp_path):  # nor is a model of one's own asked one
        with pytest.raises(QuestionError, match=r"^the question is empty"):
            models.check_question(folder, question)


def test_half_a_character_is_no_text() -> None:
    """What a word of a command line in another encoding becomes."""
    with pytest.raises(QuestionError, match=r"is no text in UTF-8$"):
        models.check_question(models.find_model(None), "Is a\ud800 person in view?")
