from __future__ import annotations

import pytest

from lookout.errors import LookoutError
from lookout.structured import StructureError, hold_s_of, structure_of, structured
from lookout.text import question_text

GATE = "Is the gate open? [open, ajar, closed] when class "


@pytest.mark.parametrize(
    ("question", "answers", "accepted"),
    [
        ("How many? [0..3] when count >= 2", "0 1 2 3", "2 3"),
        ("How many? [0..3]  when  count<2", "0 1 2 3", "0 1"),
        ("How many? [0..2, 3 or more] when people > 2", "0|1|2|3 or more", "3 or more"),
        ("How many? [0, 1, 2+] when count <= 1", "0 1 2+", "0 1"),
        ("How many? [9..11] when count = 10", "9 10 11", "10"),
        ("How many? [0..9] when count in {2..4, 7}", "0 1 2 3 4 5 6 7 8 9", "2 3 4 7"),
        (GATE + "in {open, ajar}", "open ajar closed", "open ajar"),
        (GATE + "not in {open}", "open ajar closed", "ajar closed"),
        (GATE + "== closed", "open ajar closed", "closed"),
        (GATE + "!= closed", "open ajar closed", "open ajar"),
        (GATE.replace("when", "When") + "= open", "open ajar closed", "open"),
        ("How? [for 10 s, longer] when class = for 10 s", "for 10 s|longer", "for 10 s"),
    ],
)
def test_a_question_may_end_with_its_answers_and_a_condition(
    question: str, answers: str, accepted: str
) -> None:
    parsed = structure_of(question_text(question, StructureError))
    assert parsed is not None
    separator = "|" if "|" in answers else " "
    assert parsed.answers == tuple(answers.split(separator))
    wanted = [accepted] if "|" in answers else accepted.split()
    assert [one for one, is_yes in zip(parsed.answers, parsed.accepted, strict=True) if is_yes] == wanted
    assert parsed.prompt == f"{parsed.text} Answer with one of: {', '.join(parsed.answers)}."


@pytest.mark.parametrize(
    "question",
    [
        "Is anyone there?",
        "Is [the gate] open?",
        "Is it [A] or not?",
        "[1] Is it open when dark?",
        "Is the sign [A, B] lit when it is dark?",
        "Is the number on the sign >= 5?",
        "Is it open when cars are in the yard?",
    ],
)
def test_other_questions_ask_for_yes_or_no(question: str) -> None:
    assert structure_of(question) is None
    assert question_text(question, StructureError) == question


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("How many? [0..5]", "a condition after them"),
        ("How many? [0..5] when", "a condition after them"),
        ("How many? [0..5], when count >= 3", "a condition after them"),
        ("How many? [0..5] where count >= 3", "a condition after them"),
        ("How many? [0..5]: count >= 3", "a condition after them"),
        ("How many? [0..5] if count in {3, 4}", "a condition after them"),
        ("How many? (0..5) when count >= 3", "need square brackets"),
        ("How many? 0..5 when count not in {0}", "need square brackets"),
        ("[0..5] when count >= 3", "a question before them"),
        ("How many? [a]b, c] when x = b", "need square brackets"),
        ("How many? [3..1] when count > 1", "3..1"),
        ("How many? [0..99] when count > 1", "0..99"),
        ("How many? [1] when count > 0", "two allowed answers"),
        ("How many? [1,,2] when count > 1", "empty"),
        ("How many? [1, 1] when count > 0", "twice"),
        ("How many? [0..5] when count > 5", "holds for no"),
        ("How many? [0..5] when count >= 0", "holds for every"),
        ("How many? [0..5] when many", "cannot be read"),
        ("How many? [0..5] when count >= 3 for 0 s", "“for 0 s” is not a time"),
        ("How many? [0..5] when count >= 3 for 2 h", "“for 2 h” is not a time"),
        ("How many? [0..5] when count >= 3 for 61 min", "at most 60 min"),
        ("How many? [0..5] when count >= 3 for 1.2.3 s", "is not a time"),
        (GATE + "in {shut}", "“shut”"),
        (GATE + ">= 2", "“open” is not a number"),
        ("How many? [0..5] when count >= many", "“many” is not a number"),
        (f"How many? [{', '.join(map(str, range(33)))}] when count > 1", "33 allowed answers"),
        (f"Which? [{'x' * 61}, y] when class = y", "61 characters"),
    ],
)
def test_what_cannot_be_read_is_named(question: str, names: str) -> None:
    with pytest.raises(LookoutError, match="(?s).*" + names.replace("..", r"\.\.")):
        question_text(question, StructureError)


def test_the_parts_make_the_text_that_is_read_again() -> None:
    text = structured("How many people are in view?", "0..5", "count >= 3")
    assert text == "How many people are in view? [0..5] when count >= 3"
    parsed = structure_of(text)
    assert parsed is not None
    assert parsed.p_yes([0.5, 0.1, 0.1, 0.1, 0.1, 0.1]) == pytest.approx(0.3)
    assert [parsed.said_yes(reply) for reply in ("3", "“2.”", "30", "", "five")] == [
        True,
        False,
        None,
        None,
        None,
    ]
    for answers, when in [("0..5", ""), ("", "count > 1"), (" ", "x = 1")]:
        with pytest.raises(StructureError, match="go together"):
            structured("How many?", answers, when)
    with pytest.raises(StructureError, match="square brackets"):
        structured("How [many]?", "0..5", "count > 1")


@pytest.mark.parametrize(
    ("condition", "seconds"),
    [
        ("count >= 3", 0),
        ("count >= 3 for 10 s", 10),
        ("count >= 3 for 1.5min", 90),
        ("count in {3, 4} for 30 seconds", 30),
    ],
)
def test_a_condition_may_have_to_hold_for_some_time(condition: str, seconds: float) -> None:
    question = f"How many? [0..5] when {condition}"
    parsed, plain = structure_of(question), structure_of(question.partition(" for ")[0])
    assert parsed is not None
    assert plain is not None
    assert (parsed.hold_s, hold_s_of(question)) == (seconds, seconds)
    assert (parsed.accepted, parsed.prompt) == (plain.accepted, plain.prompt)
    assert hold_s_of("Is anyone there?") == hold_s_of("How many? [0..5] when many") == 0
