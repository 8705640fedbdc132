"""Questions from outside: one function makes them one line, or names the character that cannot be asked."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from lookout import models
from lookout.cli.options import asked
from lookout.errors import LookoutError
from lookout.recordings.jobs.requests import asked_questions, check_job
from lookout.rules import check_watch, read_watch
from lookout.services.controller import convert
from lookout.text import question_text
from lookout.v1.recordings_pb2 import BacktestJob, RecordingJob
from lookout.v1.watches_pb2 import Watch
from watchbench.evaluation.labels import read_labels

QUESTION = "Is anyone lying on the ground?"
#: as texts of several lines and tables bring it
WRITTEN = [
    "Is anyone\n  lying on\r\nthe\tground?\n",
    "\u2028Is anyone lying\x85 on the\v\f ground? ",
    QUESTION,
]
REFUSED = ["\x00", "\x08", "\x1b", "\x1c", "\x7f", "\x9b"]


def _of_record(question: str) -> str:
    return read_watch("w", json.dumps({"id": "w", "version": 1, "question": question}).encode())[0].question


def _of_resource(question: str) -> str:
    return convert.watch({"metadata": {"name": "w"}, "spec": {"question": question}}).question


def _of_job(question: str) -> str:
    job = RecordingJob(id="j", uris=["file:///a.mp4"], questions=[question])
    check_job(job)
    return asked_questions(job)[0]


def _of_labels(folder: Path, question: str) -> str:
    (folder / "door.mp4").touch()
    rows = f'clip,question,answer,start_s,end_s\ndoor.mp4,"{question}",yes,,\n'
    (folder / "labels.csv").write_text(rows, newline="")
    return next(iter(read_labels(folder / "labels.csv")[0].spans))


#: wherever a question comes in: what is asked
TAKERS: dict[str, Callable[[str], str]] = {
    "command line": asked,
    "Kafka": _of_record,
    "Watch resource": _of_resource,
    "job": _of_job,
    "Python": lambda question: models.check_question(models.find_model(None), question),
    "several in Python": lambda question: models.check_questions(models.find_model(None), [question])[0],
    "another model": lambda question: models.check_question(Path("/nowhere"), question),
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("taker", TAKERS)
def test_a_question_of_several_lines_is_one_line(taker: str, written: str) -> None:
    assert TAKERS[taker](written) == QUESTION


@pytest.mark.parametrize("character", REFUSED)
@pytest.mark.parametrize("taker", TAKERS)
def test_another_control_character_is_refused_by_its_place(taker: str, character: str) -> None:
    words = rf"character 4 of the question is the control character U\+{ord(character):04X}: remove it"
    for question in (f"Is {character}it?", f"Is {character}\nit?"):
        with pytest.raises((LookoutError, convert.ResourceError), match=words):
            TAKERS[taker](question)


def test_labels_have_the_questions_that_are_asked(tmp_path: Path) -> None:
    assert _of_labels(tmp_path, WRITTEN[0]) == QUESTION
    with pytest.raises(LookoutError, match=r"line 2: character 3 of the question is the control character"):
        _of_labels(tmp_path, "Is\x1b it?")


def test_a_watch_of_a_back_test_is_held_to_the_same() -> None:
    job = RecordingJob(id="j", backtest=BacktestJob(watch=Watch(id="w", question="Is\x07 it?")))
    with pytest.raises(LookoutError, match=r"backtest: watch: character 3 of the question"):
        check_job(job)


def test_the_watch_that_asks_no_model_needs_no_question() -> None:
    check_watch(Watch(id="camera-offline"))
    with pytest.raises(LookoutError, match="control character"):
        check_watch(Watch(id="camera-offline", question="Is\x1b it offline?"))


@given(st.text(max_size=40))
@example("e\u0301 \u200d\u0646\u200c")
def test_what_is_asked_has_no_control_character_and_loses_no_other(text: str) -> None:
    try:
        line = question_text(text, LookoutError)
    except LookoutError:
        return
    assert not any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in line)
    assert "".join(line.split()) == "".join(text.split())
    assert question_text(line, LookoutError) == line


@pytest.mark.parametrize("value", [5, None, b"Is it?"])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(LookoutError, match="a question must be a text"):
        question_text(value, LookoutError)


def test_a_question_of_megabytes_is_refused_unread() -> None:
    class Unread(str):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("every character was looked at")

    with pytest.raises(LookoutError, match="has 5000000 characters; the limit is 1000"):
        question_text(Unread("x" * 5_000_000), LookoutError)
    assert question_text("Is it\n" + " " * 2000 + "on?", LookoutError) == "Is it on?"
