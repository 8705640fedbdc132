"""What a model can be asked, as its folder says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lookout.errors import LookoutError

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


def check_questions(folder: Path, questions: Sequence[str], *, text: bool = False) -> tuple[str, ...]:
    """Several questions to a model, checked as `check_question` does.

    Raises:
        QuestionError: One of them is refused, or `questions` is no list of texts.
    """
    if isinstance(questions, str) or not all(isinstance(question, str) for question in questions):
        raise QuestionError(
            f"questions is a list of texts, such as ['Is a person in view?'], not {questions!r:.80}"
        )
    for question in questions:
        check_question(folder, question, text=text)
    return tuple(questions)


def check_question(folder: Path, question: str, *, text: bool = False) -> None:
    """Refuse what a model was not trained to answer.

    Args:
        folder: The model's checkpoint.
        question: What is asked.
        text: Whether an answer in words is asked for.

    Raises:
        QuestionError: The model answers yes or no only.
    """
    if not (folder / TRAINED).is_file():
        return
    if text:
        raise QuestionError(f"the model in {folder} answers yes or no and writes no text: give another model")
    if not asks_yes_no(question):
        raise QuestionError(
            f"the model in {folder} answers questions of yes or no only, such as 'Is anyone lying on the "
            f"ground?', but {question!r} is another kind of question: give another model"
        )
