"""Splits a question into clauses, such as "Is a vehicle in view, then is anyone lying on the ground?"."""

from __future__ import annotations

import re
from typing import Final

from lookout.structured import structure_of

_THEN: Final = re.compile(r"\s*[,;.?]+\s*(?:and\s+)?then\s+", re.IGNORECASE)


def clauses_of(question: str) -> tuple[str, ...]:
    """Return the clauses of a question as separate questions. A search requires a yes to each, one after the
    other.

    Args:
        question: The question. The word "then" after a comma, or at the start of a sentence, begins a clause.

    Returns:
        The unchanged question if it has one clause; otherwise each clause, with a capital letter and a
        question mark.
    """
    parts = [part.strip(" ,;.?!") for part in _THEN.split(question)]
    if len(parts) < 2 or not all(parts):
        return (question,)
    capital = [f"{part[0].upper()}{part[1:]}" for part in parts]
    # A structured question ends with its condition, not with a question mark.
    return tuple(part if structure_of(part) is not None else f"{part}?" for part in capital)
