"""What a model can be asked, as its folder says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lookout.errors import LookoutError
from lookout.text import MAX_QUESTION, question_text

TRAINED = "watchbench.json"
"""In the folder of a model that `watchbench` trained: it answers yes or no, and nothing else."""
_WORDS = "am are can could did do does had has have is may might must shall should was were will would"
_VERBS = frozenset([*_WORDS.split(), "isn't", "aren't", "doesn't", "hasn't", "wasn't"])


class QuestionError(LookoutError, ValueError):
    """A question that a model was not trained to answer."""


def asks_yes_no(question: str) -> bool:
    """Whether a clause of a question begins with a verb such as "is", so that it asks for yes or no."""
    words = (clause.split(maxsplit=1)[:1] for clause in re.split(r"[.?!,;:]\s*", question.lower()))
    return any(word[0].strip("\"'“”") in _VERBS for word in words if word)


def check_questions(folder: Path, questions: Iterable[str], *, text: bool = False) -> tuple[str, ...]:
    """Several questions to a model, checked as `check_question` does.

    Raises:
        QuestionError: One of them is refused, or `questions` is no list of texts.
    """
    if isinstance(questions, (str, bytes)) or not isinstance(questions, Iterable):
        raise QuestionError(
            f"questions is a list of texts, such as ['Is a person in view?'], not {questions!r:.80}"
        )
    return tuple(check_question(folder, question, text=text) for question in questions)


def check_question(folder: Path, question: str, *, text: bool = False) -> str:
    """Refuse what a model was not trained to answer.

    Args:
        folder: The model's checkpoint.
        question: What is asked.
        text: Whether an answer in words is asked for.

    Returns:
        The question on one line.

    Raises:
        QuestionError: It cannot be asked (`question_text`), or the model answers short questions of yes or no
            only.
    """
    trained = (folder / TRAINED).is_file()
    asked = question_text(question, QuestionError, limit=MAX_QUESTION if trained else None)
    if not trained:
        return asked
    if text:
        raise QuestionError(f"the model in {folder} answers yes or no and writes no text: give another model")
    if not asks_yes_no(asked):
        raise QuestionError(
            f"the model in {folder} answers questions of yes or no only, such as 'Is anyone lying on the "
            f"ground?', but {asked!r} is another kind of question: give another model"
        )
    return asked
