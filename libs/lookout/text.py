"""Text from outside, before it reaches a terminal, a log or a page.

Record keys, questions, file names and a model's answers may hold anything: escape sequences that repaint a
terminal (ESC [, OSC), marks that turn the direction of writing, a megabyte in a line. `clean` is the one
function for all of them, `clean_event` its form for log lines; `tests/unit/house/test_outside_text.py` finds
prints and logs that go without it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from lookout.errors import LookoutError
from lookout.structured import StructureError, structure_of

#: characters of one text that are shown; questions have 1 000 at most
CHARACTERS: Final = 1200
#: characters of a question; all questions of a window share its rows
MAX_QUESTION: Final = 1000
#: a question may have so many times its limit of characters before ends of lines and blanks are made one:
#: what is longer is refused unread, as reading megabytes takes seconds
_BLANK_SHARE: Final = 16
#: characters of a traceback, entries of a list, that a log line holds
TRACEBACK: Final = 20_000
ENTRIES: Final = 100
#: categories of Unicode that are written as an escape: controls (Cc), marks of direction and other formats
#: (Cf), halves of surrogate pairs (Cs), private use (Co), unassigned (Cn), and the separators of lines and
#: paragraphs (Zl, Zp)
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: ends of lines and tabs: what a question of several lines in YAML has between its words
_BREAKS: Final = "\t\n\v\f\r\x85\u2028\u2029"
_BREAK: Final = re.compile(rf"\s*[{_BREAKS}]\s*")


def clean(text: object, limit: int = CHARACTERS) -> str:
    """Text that can be shown on one line.

    Args:
        text: Anything; its `str` is taken.
        limit: Characters of it that are shown.

    Returns:
        The text with every character that cannot be seen written as its escape (\\x1b, \\u202e), and
        with the number of characters left out after the first `limit`.
    """
    full = str(text)
    shown = visible(full[:limit]).replace("\n", "\\x0a").replace("\t", "\\x09")
    return shown if len(full) <= limit else f"{shown}… ({len(full) - limit} more characters)"


def is_encodable(text: str) -> bool:
    """Whether a text can be written in UTF-8: a word of a command line in another encoding cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def question_text(
    question: str, error: Callable[[str], LookoutError], *, limit: int | None = MAX_QUESTION
) -> str:
    """A question as it is asked: anyone who takes one from outside calls this.

    Args:
        question: What a caller, a record or a resource asks.
        error: What to raise.
        limit: Characters that it may have; None: any number.

    Returns:
        The question on one line: ends of lines and tabs, with the blanks around them, are one blank.

    Raises:
        LookoutError: `error`: it is not valid UTF-8, empty, too long, has another control character, or ends
            with allowed answers or a condition that cannot be read (`lookout.structured`).
    """
    if not isinstance(question, str):
        raise error(f"a question is a text, such as 'Is a person in view?', not {question!r:.80}")
    if limit is not None and len(question) > _BLANK_SHARE * limit:
        raise error(f"the question has {len(question)} characters; {limit} is the limit")
    if not is_encodable(question):
        raise error(f"the question {clean(question, 60)} is not valid UTF-8")
    for place, character in enumerate(question, start=1):
        if character not in _BREAKS and unicodedata.category(character) == "Cc":
            code = f"U+{ord(character):04X}"
            raise error(f"character {place} of the question is the control character {code}: remove it")
    text = _BREAK.sub(" ", question).strip()
    if not text:
        raise error("the question is empty: ask something, such as 'Is a person in view?'")
    if limit is not None and len(text) > limit:
        raise error(f"the question has {len(text)} characters; {limit} is the limit")
    try:
        structure_of(text)
    except StructureError as fault:
        raise error(clean(fault, 400)) from None
    return text


def clean_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The same for every text of a log line: a processor of structlog, the last one before lines are made.

    Returns:
        The event; a traceback keeps its lines and the end of it.
    """
    for name, value in event.items():
        if name in ("exception", "stack"):
            event[name] = visible(str(value)[-TRACEBACK:])
        else:
            event[name] = _cleaned(value)
    return event


def _cleaned(value: object, depth: int = 0) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict) and depth < 3:
        return {clean(key): _cleaned(inner, depth + 1) for key, inner in list(value.items())[:ENTRIES]}
    if isinstance(value, list | tuple | set | frozenset) and depth < 3:
        return [_cleaned(inner, depth + 1) for inner in list(value)[:ENTRIES]]
    return clean(value)


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


def public_url(url: str) -> str:
    """A URL without user name, password and query, for messages; the path of a file as it is."""
    try:
        parts = urlsplit(url)
        if not parts.netloc and (parts.scheme == "file" or url.startswith("/")):
            return clean(url, 4096)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        place = host if parts.port is None else f"{host}:{parts.port}"
        shown = urlunsplit((parts.scheme, place, parts.path, "", ""))
        return shown if host and "@" not in shown else "(not a URL)"
    except ValueError:
        return "(not a URL)"


#: an address within a text, with one slash too where a path took the other; a password may hold any
#: character but the end of the line
_USER_INFO = re.compile(r"(?<=:/)(/*)[^\n]*@")
_QUERY = re.compile(r"(:/+[^\s?]*)\?[^\s'\")\]]*")


def without_credentials(text: str) -> str:
    """A text in which addresses have no user, password and query: what a person typed in a wrong place.

    Where two addresses with passwords stand on one line, the first is lost with the password of the second.
    """
    return _QUERY.sub(r"\1", _USER_INFO.sub(r"\1", text))
