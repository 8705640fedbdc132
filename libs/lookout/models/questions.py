"""Tells which questions a model can be asked, according to its folder."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from lookout.errors import LookoutError
from lookout.models.errors import ModelError
from lookout.structured import NO_TEXT, structure_of
from lookout.text import MAX_QUESTION, question_text

TRAINED = "watchbench.json"
"""Marks the folder of a model that `watchbench` trained: it answers yes or no, and nothing else."""
_WORDS = "am are can could did do does had has have is may might must shall should was were will would"
_VERBS = frozenset([*_WORDS.split(), "isn't", "aren't", "doesn't", "hasn't", "wasn't"])


#: next to config.json: a model's training questions, in all wordings, and its F1 by kind of footage
QUESTIONS_FILE: Final = "lookout_questions.json"


@dataclass(frozen=True, slots=True)
class ListedQuestion:
    """A question for which a model was trained.

    Attributes:
        wordings: The ways to ask the question, the usual one first.
        f1: F1 by kind of footage ("rendered", "real"); a kind that was not measured is missing.
        strides: The language model's cost of asking about each stride alone, as a share of its cost with
            windows. None: it was not measured that strides answer the question as well as windows.
    """

    wordings: tuple[str, ...]
    f1: Mapping[str, float]
    strides: float | None = None

    @property
    def quality(self) -> str:
        """F1 in words: "F1 0.98 on rendered footage, 0.88 on real footage"."""
        kinds = [f"{value:.2f} on {kind} footage" for kind, value in self.f1.items()]
        missing = [f"not measured on {kind} footage" for kind in ("rendered", "real") if kind not in self.f1]
        return ", ".join([f"F1 {kinds[0]}", *kinds[1:], *missing]) if kinds else "F1 not measured"


def listed_questions(folder: Path) -> tuple[ListedQuestion, ...] | None:
    """Return the questions that a checkpoint folder lists; None: it has no list, so every question may be
    asked.

    Raises:
        ModelError: The list cannot be read.
    """
    path = folder / QUESTIONS_FILE
    if not path.is_file():
        return None
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text())["questions"]
        return tuple(
            ListedQuestion(
                tuple(str(wording) for wording in entry["wordings"]),
                {str(kind): float(value) for kind, value in entry.get("f1", {}).items()},
                float(entry["strides"]) if "strides" in entry else None,
            )
            for entry in entries
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a list of questions: {error}") from error


def question_quality(folder: Path, question: str) -> str | None:
    """Return how well a model answers a question, in words: its F1, or that it was not trained for the
    question. None: the folder has no list of questions."""
    listed = listed_questions(folder)
    if listed is None:
        return None
    found = find_listed(listed, question)
    return UNTRAINED if found is None else found.quality


def strides_share(folder: Path, question: str) -> float | None:
    """Return the language model's cost of asking a question about each stride alone, as a share of its cost
    with windows. None: the folder does not list that strides answer the question as well as windows."""
    found = find_listed(listed_questions(folder) or (), question)
    return None if found is None else found.strides


UNTRAINED: Final = "the model was not trained for this question"


def find_listed(listed: Iterable[ListedQuestion], question: str) -> ListedQuestion | None:
    """Return the listed question that has a question as one of its wordings; None: there is none. Case,
    punctuation and white space do not matter."""
    key = _normal(question)
    return next((entry for entry in listed if any(_normal(text) == key for text in entry.wordings)), None)


def is_untrained(listed: Iterable[ListedQuestion] | None, question: str) -> bool:
    """Whether a model lists the questions for which it was trained (`listed_questions`), and this question is
    not one of them."""
    return listed is not None and find_listed(listed, question) is None


def _normal(question: str) -> str:
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join("".join(c if c.isalnum() or c in "'’" else " " for c in text).replace("’", "'").split())


class QuestionError(LookoutError, ValueError):
    """The question is not valid, or the model was not trained to answer it."""


def writes_text(folder: Path) -> bool:
    """Whether a model can also answer in words."""
    return not (folder / TRAINED).is_file()


def asks_yes_no(question: str) -> bool:
    """Whether the answer to a question is p(yes): one of its clauses begins with a verb such as "is", or it
    lists its allowed answers (`lookout.structured`).

    Raises:
        StructureError: Its allowed answers or its condition cannot be read.
    """
    if structure_of(question) is not None:
        return True
    words = (clause.split(maxsplit=1)[:1] for clause in re.split(r"[.?!,;:]\s*", question.lower()))
    return any(word[0].strip("\"'“”") in _VERBS for word in words if word)


def check_questions(
    folder: Path, questions: Iterable[str], *, text: bool = False, anyway: bool = False
) -> tuple[str, ...]:
    """Check several questions as `check_question` does, and return them.

    Raises:
        QuestionError: A question is rejected, or `questions` is not a list of texts.
    """
    if isinstance(questions, (str, bytes)) or not isinstance(questions, Iterable):
        raise QuestionError(
            f"questions must be a list of texts, such as ['Is a person in view?'], not {questions!r:.80}"
        )
    return tuple(check_question(folder, question, text=text, anyway=anyway) for question in questions)


def check_question(folder: Path, question: str, *, text: bool = False, anyway: bool = False) -> str:
    """Check that a model can be asked a question, and return the question on one line.

    Args:
        folder: The model's checkpoint.
        question: The question.
        text: Whether the answer must be in words.
        anyway: Accept a yes/no question, or one with allowed answers, that the folder does not list.

    Returns:
        The question on one line.

    Raises:
        QuestionError: The question cannot be asked (`question_text`), the model answers only short yes/no
            questions or only those that its folder lists, or its tokenizer cannot tell the allowed answers
            apart.
        ModelError: The folder's list of questions cannot be read.
        WindowError: There are allowed answers, but the folder's tokenizer or prompt cannot be used.
    """
    trained, listed = (folder / TRAINED).is_file(), listed_questions(folder)
    asked = question_text(question, QuestionError, limit=MAX_QUESTION if trained else None)
    if text and structure_of(asked) is not None:
        raise QuestionError(NO_TEXT)
    if trained and text:
        raise QuestionError(
            f"the model {folder.name} only answers yes or no and writes no text: give another model"
        )
    if trained and not asks_yes_no(asked):
        raise QuestionError(
            f"the model {folder.name} answers only yes/no questions: rephrase the question as one, such as "
            "'Is anyone lying on the ground?', or give another model"
        )
    if listed is not None and not (text or anyway) and find_listed(listed, asked) is None:
        usual = "; ".join(repr(entry.wordings[0]) for entry in listed[:5])
        more = "" if len(listed) <= 5 else f", or another question that its {QUESTIONS_FILE} lists"
        raise QuestionError(
            f"the model {folder.name} was not trained for {asked!r}, so its answer would mean little: ask "
            f"{usual}{more}; or give another model, or force it (--anyway, in Python anyway=True)"
        )
    if structure_of(asked) is not None and (fault := _answers_fault(folder, asked)) is not None:
        raise QuestionError(fault)
    return asked


@lru_cache(maxsize=256)
def _answers_fault(folder: Path, question: str) -> str | None:
    """Return why a model's tokenizer cannot write the allowed answers of a question; None if it can."""
    from lookout.models.engines.asked import question_fault
    from lookout.models.families import load_layout, load_tokenizer

    return question_fault(question, tokenizer=load_tokenizer(folder), layout=load_layout(folder))
