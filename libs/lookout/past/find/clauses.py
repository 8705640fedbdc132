"""Splits a question into clauses: "Is a vehicle in view, then is anyone lying on the ground?"."""

from __future__ import annotations

import re
from typing import Final

from lookout.structured import structure_of

_THEN: Final = re.compile(r"\s*[,;.?]+\s*(?:and\s+)?then\s+", re.IGNORECASE)


def clauses_of(question: str) -> tuple[str, ...]:
    """Return the clauses of a question, which must hold one after the other; each is a complete question.

    Args:
        question: The question; its clauses are separated by "then" after a comma or the end of a sentence.

    Returns:
        An unchanged question if it has one clause; else each clause, with a capital letter and a question
        mark.
    """
    parts = [part.strip(" ,;.?!") for part in _THEN.split(question)]
    if len(parts) < 2 or not all(parts):
        return (question,)
    capital = [f"{part[0].upper()}{part[1:]}" for part in parts]
    # A structured question ends with its condition, not with a question mark.
    return tuple(part if structure_of(part) is not None else f"{part}?" for part in capital)
