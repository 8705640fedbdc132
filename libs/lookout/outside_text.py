"""Text from outside, before it reaches a terminal, a log or a page.

Record keys, questions, file names and a model's answers may hold anything: escape sequences that repaint a
terminal (ESC [, OSC), marks that turn the direction of writing, a megabyte in a line. `clean` is the one
function for all of them; `tests/unit/house/test_outside_text.py` finds prints that go without it.
"""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["CHARACTERS", "clean", "visible"]

#: characters of one text that are shown; questions have 1 000 at most
CHARACTERS: Final = 1200
#: categories of Unicode that are written as an escape: controls (Cc), marks of direction and other formats
#: (Cf), halves of surrogate pairs (Cs), private use (Co), unassigned (Cn), and the separators of lines and
#: paragraphs (Zl, Zp)
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def clean(text: object, limit: int = CHARACTERS) -> str:
    """Text that can be shown on one line.

    Args:
        text: Anything; its `str` is taken.
        limit: Characters of it that are shown.

    Returns:
        The text with every character that is none to look at written as its escape (\\x1b, \\u202e), and
        with the number of characters left out behind the first `limit`.
    """
    full = str(text)
    shown = visible(full[:limit]).replace("\n", "\\x0a").replace("\t", "\\x09")
    return shown if len(full) <= limit else f"{shown}… ({len(full) - limit} more characters)"


def visible(text: str) -> str:
    """The same, of any length and number of lines: ends of lines and tabs stay."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character in " \n\t" or unicodedata.category(character) not in _ESCAPED:
        return character
    code = ord(character)
    if code < 0x20:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
