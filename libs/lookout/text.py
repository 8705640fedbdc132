"""Makes untrusted text safe to show in a terminal, a log or a page.

Record keys, questions, file names and a model's answers may contain anything: escape sequences that repaint a
terminal (ESC [, OSC), marks that change the direction of text, a megabyte in one line. `clean` is the one
function for all of them, and `clean_event` its form for log lines; `tests/unit/house/test_outside_text.py`
finds prints and logs that do not use them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from lookout.errors import LookoutError
from lookout.structured import StructureError, structure_of

#: most characters shown of one text; questions have at most 1 000
CHARACTERS: Final = 1200
#: most characters of a question; all questions of a window share the window's rows
MAX_QUESTION: Final = 1000
#: before line ends and blanks are joined, a question may have this many times its limit of characters; longer
#: questions are rejected unread, because reading megabytes takes seconds
_BLANK_SHARE: Final = 16
#: most characters of a traceback, and entries of a list, in a log line
TRACEBACK: Final = 20_000
ENTRIES: Final = 100
#: Unicode categories that are written as escapes: controls (Cc), direction marks and other formats (Cf),
#: halves of surrogate pairs (Cs), private use (Co), unassigned (Cn), and the separators of lines and
#: paragraphs (Zl, Zp)
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: line ends and tabs: what separates the words of a multi-line question in YAML
_BREAKS: Final = "\t\n\v\f\r\x85\u2028\u2029"
_BREAK: Final = re.compile(rf"\s*[{_BREAKS}]\s*")


def clean(text: object, limit: int = CHARACTERS) -> str:
    """Return text that is safe to show on one line.

    Args:
        text: Any object; it is converted with `str`.
        limit: Maximum number of characters to show.

    Returns:
        The first `limit` characters, with invisible ones as escapes (\\x1b, \\u202e). If the text is longer,
        the number of characters left out follows.
    """
    full = str(text)
    shown = visible(full[:limit]).replace("\n", "\\x0a").replace("\t", "\\x09")
    return shown if len(full) <= limit else f"{shown}… ({len(full) - limit} more characters)"


def is_encodable(text: str) -> bool:
    """Whether a text can be written in UTF-8. Arguments of a command line in another encoding may not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def question_text(
    question: str, error: Callable[[str], LookoutError], *, limit: int | None = MAX_QUESTION
) -> str:
    """Check a question and put it on one line; all code that takes questions from outside calls this.

    Args:
        question: The question, from a caller, a record or a resource.
        error: The exception to raise.
        limit: Maximum number of characters; None: any number.

    Returns:
        The question on one line: line ends and tabs, with the blanks around them, become one blank.

    Raises:
        LookoutError: `error`: it is not valid UTF-8, empty, too long, has another control character, or ends
            with invalid allowed answers or an invalid condition (`lookout.structured`).
    """
    if not isinstance(question, str):
        raise error(f"a question must be a text such as 'Is a person in view?', not {question!r:.80}")
    if limit is not None and len(question) > _BLANK_SHARE * limit:
        raise error(f"the question has {len(question)} characters; the limit is {limit}")
    if not is_encodable(question):
        raise error(f"the question {clean(question, 60)} is not valid UTF-8")
    for place, character in enumerate(question, start=1):
        if character not in _BREAKS and unicodedata.category(character) == "Cc":
            code = f"U+{ord(character):04X}"
            raise error(f"character {place} of the question is the control character {code}: remove it")
    text = _BREAK.sub(" ", question).strip()
    if not text:
        raise error("the question is empty: write one, such as 'Is a person in view?'")
    if limit is not None and len(text) > limit:
        raise error(f"the question has {len(text)} characters; the limit is {limit}")
    try:
        structure_of(text)
    except StructureError as fault:
        raise error(clean(fault, 400)) from None
    return text


def clean_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Clean every text of a log line, as structlog's last processor before rendering.

    Returns:
        The event. A traceback keeps its line breaks, and its end if it is too long.
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
    """Escape characters as `clean` does, but keep line ends, tabs and any length."""
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
    """Return a URL without user name, password and query, for messages; a file path is not changed."""
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


#: an address within a text, possibly with a single slash if a path joined the two; a password may contain any
#: character but a line end
_USER_INFO = re.compile(r"(?<=:/)(/*)[^\n]*@")
_QUERY = re.compile(r"(:/+[^\s?]*)\?[^\s'\")\]]*")


def without_credentials(text: str) -> str:
    """Remove user name, password and query from addresses in a text, because somebody may have typed them in
    the wrong place.

    If one line has two addresses with passwords, everything from the first address to the second address's
    password is removed.
    """
    return _QUERY.sub(r"\1", _USER_INFO.sub(r"\1", text))
