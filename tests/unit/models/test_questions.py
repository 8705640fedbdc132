"""What may be asked of the model that comes with Lookout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lookout import models
from lookout.models.questions import QUESTIONS_FILE, QuestionError

QUESTION = "Is a person in view?"


def test_a_generator_gives_its_questions_as_a_list_does() -> None:
    assert models.check_questions(models.find_model(None), (text for text in [QUESTION])) == (QUESTION,)


@pytest.mark.parametrize("questions", [QUESTION, b"Is it?", None, 5, [5], [None]])
def test_what_is_no_list_of_texts_is_refused(questions: Any) -> None:
    with pytest.raises(QuestionError, match=r"a list of texts|a question must be a text"):
        models.check_questions(models.find_model(None), questions)


@pytest.mark.parametrize("question", [QUESTION * 51, "a" * 1_000_000])
def test_a_question_that_no_watch_could_ask_is_refused_and_not_echoed(question: str) -> None:
    with pytest.raises(QuestionError, match=r"^the question has [0-9]+ characters; the limit is 1000$"):
        models.check_question(models.find_model(None), question)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_a_question_that_is_empty_is_called_so(question: str, tmp_path: Path) -> None:
    for folder in (models.find_model(None), tmp_path):  # nor is a model of one's own asked one
        with pytest.raises(QuestionError, match=r"^the question is empty"):
            models.check_question(folder, question)


def test_half_a_character_is_no_text() -> None:
    """What a word of a command line in another encoding becomes."""
    with pytest.raises(QuestionError, match=r"is not valid UTF-8$"):
        models.check_question(models.find_model(None), "Is a\ud800 person in view?")


LISTED = models.find_model(None)


@pytest.mark.parametrize(
    "question", ["is ANYONE lying on the ground", "Is anyone  lying on the ground ?!", "Has someone fallen."]
)
def test_a_listed_question_is_known_whatever_its_case_and_punctuation(question: str) -> None:
    assert models.check_question(LISTED, question) == question
    assert str(models.question_quality(LISTED, question)).startswith("F1 0.")


def test_another_question_is_refused_unless_it_is_forced() -> None:
    question = "Is anyone climbing the fence?"
    with pytest.raises(QuestionError, match=r"not trained for 'Is anyone climbing the fence\?'.*--anyway"):
        models.check_question(LISTED, question)
    assert models.check_question(LISTED, question, anyway=True) == question
    assert models.question_quality(LISTED, question) == models.UNTRAINED
    with pytest.raises(QuestionError, match="writes no text"):
        models.check_question(LISTED, "Is a person in view?", text=True, anyway=True)


def test_a_folder_without_a_list_takes_every_question(tmp_path: Path) -> None:
    assert models.check_question(tmp_path, "What now") == "What now"
    assert models.question_quality(tmp_path, "Is it?") is None
    (tmp_path / QUESTIONS_FILE).write_text('{"questions": [{"wordings": ["Is it?"], "f1": {"real": 0.5}}]}')
    quality = models.question_quality(tmp_path, "is it")
    assert quality == "F1 0.50 on real footage, not measured on rendered footage"
    (tmp_path / QUESTIONS_FILE).write_text("[]")
    with pytest.raises(models.ModelError, match="not a list of questions"):
        models.check_question(tmp_path, "Is it?")


def test_every_wording_that_the_model_learnt_is_listed_with_its_committed_f1() -> None:
    import json

    from bench.pages import question_list, unseen_falls
    from bench.record import RESULTS, Record
    from watchbench.questions import QUESTIONS

    records = {
        name: Record.read(RESULTS / f"{name}.json") for name in ("sight-20", "sight-falls", "worth", "far")
    }
    record = records["sight-20"]
    assert (LISTED / QUESTIONS_FILE).read_text() == question_list(records)
    for question in QUESTIONS:
        for wording in question.wordings:
            if record.figures["pruned"][question.name]:
                assert models.check_question(LISTED, wording)
            else:  # it was asked in training, and not learned
                with pytest.raises(models.QuestionError, match="not trained"):
                    models.check_question(LISTED, wording)
    listed = json.loads((LISTED / QUESTIONS_FILE).read_text())["questions"]
    real = {one["name"]: one["f1"].get("real") for one in listed}
    assert real["person"] == record.figures["real"]["person"]
    # Of clips that chose no weights: 5 of 7 falls, nobody else.
    assert real["lying"] == unseen_falls(records["sight-falls"]) == round(10 / 12, 3)


def test_strides_are_offered_where_they_were_measured_to_be_as_good() -> None:
    from bench.pages import strides_as_good

    def row(low: float, f1: float = 0.9) -> dict[str, object]:
        return {"strides": f1, "strides less default 95 %": [low, 0.05]}

    worth = {
        "better": row(0.01),
        "as good": row(-0.019),
        "unsure": row(-0.2),
        "not learnt": row(0.0, 0.0),
        "of several strides": row(0.01),
    }
    lost = {"of several strides": {"strides, max": [0.3, 0.5]}, "as good": {"strides, max": [-0.05, 0.1]}}
    assert strides_as_good(worth, {"default less others": lost}) == {"better", "as good"}
    assert models.strides_share(LISTED, "is a person in view") is not None
    assert models.strides_share(LISTED, "Did a person appear before a vehicle?") is None  # order
    assert models.strides_share(LISTED, "Is anyone climbing the fence?") is None
