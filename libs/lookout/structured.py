"""Structured questions: a question that ends with its allowed answers and the condition that counts as yes.

    How many people are in view? [0..5] when count >= 3
    Is the gate open, ajar or closed? [open, ajar, closed] when class in {open, ajar}

All of this is one text, so watches, jobs, searches and back-tests treat it like any other question.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from lookout.errors import LookoutError

#: most allowed answers of a question: each verdict contains the probability of every answer
MAX_ANSWERS: Final = 32
#: most characters of an answer
MAX_ANSWER: Final = 60
#: decimals of the probabilities that engines return; finer than the noise of batching
DIGITS: Final = 6

#: why a structured question is rejected if text would be generated
NO_TEXT: Final = (
    "a question with allowed answers gets their probabilities and no text: leave the answers out, or "
    "do not ask for text"
)

_QUESTION: Final = re.compile(r"(?P<text>[^\[\]]*\S)\s*\[(?P<answers>[^\[\]]*)\]\s*(?i:when)\s+(?P<when>.+)")
#: a list of answers at the end of the text or before a condition, or a condition without a list: a plain
#: yes/no question contains neither
_MISPLACED: Final = re.compile(
    r"\[[^\[\]]*(?:,|\.\.)[^\[\]]*\](?:[\s,.:;]*(?:when\b.*)?$|.*[<>={])"
    r"|\bwhen\s+\w+\s*(?:[<>=]|!=|(?:not\s+)?in\s*\{)",
    re.IGNORECASE,
)
_RANGE: Final = re.compile(r"(\d{1,4})\s*\.\.\s*(\d{1,4})")
_NUMBER: Final = re.compile(r"(\d{1,9})(?:\+| or more)?")
_COMPARISON: Final = re.compile(r"\w+\s*(?P<sign>>=|<=|!=|==|=|>|<)\s*(?P<value>.+)")
_MEMBERSHIP: Final = re.compile(r"\w+\s+(?P<not>not\s+)?in\s*\{(?P<answers>[^{}]*)\}")
_DURATION: Final = re.compile(r"\s+for\s+(?P<number>[\d.]+)\s*(?P<unit>\w*)$")
_UNITS_S: Final = {"s": 1, "sec": 1, "second": 1, "seconds": 1, "min": 60, "minute": 60, "minutes": 60}
#: most seconds for which a condition may have to hold
MAX_HOLD_S: Final = 3600.0
_ORDER: Final[dict[str, Callable[[int, int], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class StructureError(LookoutError, ValueError):
    """The allowed answers or the condition are invalid; the text says which, why and what to write."""


@dataclass(frozen=True, slots=True)
class StructuredQuestion:
    """A question with a list of allowed answers.

    Attributes:
        text: The question, without answers and condition.
        answers: The allowed answers, in the given order.
        when: The condition, as given.
        accepted: For each answer, whether it satisfies the condition. p(yes) is the sum of the probabilities
            of the answers that do.
        hold_s: Seconds for which the condition must hold before an incident opens.
    """

    text: str
    answers: tuple[str, ...]
    when: str
    accepted: tuple[bool, ...]
    hold_s: float = 0.0

    @property
    def prompt(self) -> str:
        """The text that the model is asked: the question, and the answers from which it may choose."""
        return f"{self.text} Answer with one of: {', '.join(self.answers)}."

    def p_yes(self, shares: Sequence[float]) -> float:
        """Return the probability that the condition holds, given the probability of each answer."""
        return min(1.0, sum(p for p, is_yes in zip(shares, self.accepted, strict=True) if is_yes))

    def said_yes(self, reply: str) -> bool | None:
        """Whether a reply in words begins with an answer that satisfies the condition; None if it begins with
        no allowed answer."""
        choices = "|".join(re.escape(answer) for answer in sorted(self.answers, key=len, reverse=True))
        match = re.match(rf"\W*?({choices})(?!\w)", reply, re.IGNORECASE)
        if match is None:
            return None
        # Two answers may differ only in case.
        word = match[1] if match[1] in self.answers else match[1].casefold()
        return any(
            is_yes and word in (answer, answer.casefold())
            for answer, is_yes in zip(self.answers, self.accepted, strict=True)
        )


def named_shares(question: str, shares: Sequence[float]) -> dict[str, float]:
    """Return the probability of each allowed answer by its text; empty for a yes/no question."""
    structure = structure_of(question) if shares else None
    if structure is None:
        return {}
    return {answer: round(p, DIGITS) for answer, p in zip(structure.answers, shares, strict=True)}


def shares_text(answers: Mapping[str, float], limit: int = 3) -> str:
    """Format the most likely answers with their probabilities: "3 (62 %), 2 (20 %)"."""
    best = sorted(answers.items(), key=lambda share: -share[1])[:limit]
    return ", ".join(f"{answer} ({p:.0%})" for answer, p in best)


def structured(text: str, answers: str, when: str) -> str:
    """Return a structured question as one text.

    Args:
        text: The question.
        answers: The allowed answers: "0..5", or "open, ajar, closed".
        when: The condition: "count >= 3", or "class in {open, ajar}".

    Raises:
        StructureError: The answers or the condition are invalid.
    """
    if not answers.strip() or not when.strip():
        raise StructureError(
            "allowed answers and a condition go together, such as 0..5 with “count >= 3”; one is missing"
        )
    question = f"{text.strip()} [{answers.strip()}] when {when.strip()}"
    parsed = structure_of(question)
    if parsed is None or parsed.text != text.strip():
        raise StructureError("the question and its allowed answers may contain no square brackets")
    return question


@lru_cache(maxsize=4096)
def structure_of(question: str) -> StructuredQuestion | None:
    """Parse the allowed answers and the condition at the end of a question; None for a yes/no question.

    Raises:
        StructureError: The answers or the condition are invalid.
    """
    match = _QUESTION.fullmatch(question)
    if match is None:
        if _MISPLACED.search(question):
            raise StructureError(
                "allowed answers need square brackets, a question before them and a condition after them, as "
                "in How many people are in view? [0..5] when count >= 3"
            )
        return None
    answers = _listed(match["answers"])
    if len(answers) < 2:
        raise StructureError("a structured question needs at least two allowed answers, such as [0..5]")
    when = match["when"].strip()
    condition, hold_s = _untimed(when, answers)
    accepted = _accepted(answers, condition)
    if all(accepted) or not any(accepted):
        which = "every" if all(accepted) else "no"
        raise StructureError(f"the condition “{when}” holds for {which} allowed answer: choose another")
    return StructuredQuestion(match["text"], answers, when, accepted, hold_s)


def hold_s_of(question: str) -> float:
    """Return how many seconds a question's condition must hold before an incident opens; 0 if the question
    states no time or is invalid."""
    try:
        structure = structure_of(question)
    except StructureError:
        return 0.0
    return 0.0 if structure is None else structure.hold_s


def _listed(text: str) -> tuple[str, ...]:
    """Parse answers such as "open, ajar", "0..5" or both."""
    answers: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise StructureError(f"“{text}”: an answer is empty: write answers as in open, ajar, closed")
        if (span := _RANGE.fullmatch(part)) is None:
            answers.append(part)
            continue
        first, last = int(span[1]), int(span[2])
        if not first < last <= first + MAX_ANSWERS:
            raise StructureError(
                f"“{part}” is not a rising range of at most {MAX_ANSWERS} answers, such as 0..5"
            )
        answers += map(str, range(first, last + 1))
    if len(answers) > MAX_ANSWERS:
        raise StructureError(f"there are {len(answers)} allowed answers; the limit is {MAX_ANSWERS}")
    for answer in answers:
        if len(answer) > MAX_ANSWER:
            raise StructureError(f"an answer has {len(answer)} characters; the limit is {MAX_ANSWER}")
        if answers.count(answer) > 1:
            raise StructureError(f"the answer “{answer}” occurs twice: remove one")
    return tuple(answers)


def _untimed(when: str, answers: tuple[str, ...]) -> tuple[str, float]:
    """Split a condition into the condition without its time ("for 10 s"), and the time in seconds."""
    match = _DURATION.search(when)
    # An answer may itself end with a time.
    if match is None or any(_DURATION.search(f" {each}") and when.endswith(each) for each in answers):
        return when, 0.0
    try:
        seconds = float(match["number"]) * _UNITS_S[match["unit"].lower()]
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds <= MAX_HOLD_S:
        raise StructureError(
            f"“{match[0].strip()}” is not a time such as for 10 s or for 2 min, above 0 and at most "
            f"{MAX_HOLD_S / 60:.0f} min"
        )
    return when[: match.start()].rstrip(), seconds


def _accepted(answers: tuple[str, ...], when: str) -> tuple[bool, ...]:
    """Return, for each answer, whether it satisfies a condition."""
    if membership := _MEMBERSHIP.fullmatch(when):
        named = _known(_listed(membership["answers"]), answers, when)
        return tuple((answer in named) is not bool(membership["not"]) for answer in answers)
    comparison = _COMPARISON.fullmatch(when)
    if comparison is None:
        raise StructureError(
            f"the condition “{when}” cannot be read: write one such as count >= 3, class = open or "
            "class in {open, ajar}"
        )
    sign, value = comparison["sign"], comparison["value"].strip()
    if sign in ("=", "==", "!="):
        named = _known((value,), answers, when)
        return tuple((answer in named) is (sign != "!=") for answer in answers)
    holds, limit = _ORDER[sign], _number(value, when)
    return tuple(holds(_number(answer, when), limit) for answer in answers)


def _known(named: tuple[str, ...], answers: tuple[str, ...], when: str) -> tuple[str, ...]:
    for answer in named:
        if answer not in answers:
            raise StructureError(
                f"the condition “{when}” names “{answer}”, which is not an allowed answer: "
                f"{', '.join(answers)}"
            )
    return named


def _number(text: str, when: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise StructureError(
            f"the condition “{when}” compares numbers, but “{text}” is not a number such as 3, 3+ or "
            "3 or more"
        )
    return int(match[1])
