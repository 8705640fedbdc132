"""What names the version of an HTTP server's bytes, so that a later range is of the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: characters of a version; longer ones are not repeated to the server
_CHARACTERS: Final = 120


def version_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What `If-Range` may name (RFC 9110, 13.1.5): a strong ETag, else the time of the last change.

    Args:
        headers: Names and values of an answer.

    Returns:
        The version; nothing where the server names none.
    """
    values = {name.lower(): value for name, value in headers}
    for name in (b"etag", b"last-modified"):
        value = values.get(name, b"").decode("latin-1").strip()
        weak = value.startswith("W/")
        if value and not weak and value.isascii() and value.isprintable() and len(value) <= _CHARACTERS:
            return value
    return ""
