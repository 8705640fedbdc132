"""A question of several clauses: "Is a vehicle in view, then is anyone lying on the ground?"."""

from __future__ import annotations

import re
from typing import Final

from lookout.structured import structure_of

_THEN: Final = re.compile(r"\s*[,;.?]+\s*(?:and\s+)?then\s+", re.IGNORECASE)


def clauses_of(question: str) -> tuple[str, ...]:
    """The clauses of a question, which hold one after the other; each is a question of its own.

    Args:
        question: Clauses are joined by "then" after a comma or the end of a sentence.

    Returns:
        The question as it is where it has one clause; else each clause with a capital and a question mark.
    """
    parts = [part.strip(" ,;.?!") for part in _THEN.split(question)]
    if len(parts) < 2 or not all(parts):
        return (question,)
    capital = [f"{part[0].upper()}{part[1:]}" for part in parts]
    # One that lists its answers ends with a condition.
    return tuple(part if structure_of(part) is not None else f"{part}?" for part in capital)
