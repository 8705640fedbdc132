"""Identifies the version of a file on an HTTP server, so that all its ranges come from the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: maximum number of characters of a version; a longer version is not sent back to the server
_CHARACTERS: Final = 120


def version_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return a validator for `If-Range` (RFC 9110, 13.1.5): a strong ETag, else the modification time.

    Args:
        headers: Names and values of a response.

    Returns:
        The version; "" if the server states none.
    """
    values = {name.lower(): value for name, value in headers}
    for name in (b"etag", b"last-modified"):
        value = values.get(name, b"").decode("latin-1").strip()
        weak = value.startswith("W/")
        if value and not weak and value.isascii() and value.isprintable() and len(value) <= _CHARACTERS:
            return value
    return ""
