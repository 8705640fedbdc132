"""Signed links, which open one resource for a limited time without a sign-in. The gateway and notify share
the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from lookout.disk import read_file
from lookout.errors import StartupError

#: minimum length of a key in bytes
_LEAST_KEY: Final = 16


def read_link_key(path: Path, setting: str) -> bytes:
    """Read the signing key from a file.

    Args:
        path: The file.
        setting: The setting that names it, for messages.

    Raises:
        StartupError: The file cannot be read, or the key is too short.
    """
    try:
        key = read_file(path, links=True).strip()
    except (OSError, ValueError) as error:
        raise StartupError(f"{setting}={path}: {error}") from error
    if len(key) < _LEAST_KEY:
        raise StartupError(f"{setting}={path}: the key must have at least {_LEAST_KEY} bytes")
    return key


def signed_link(key: bytes, base: str, path: str, seconds: float) -> str:
    """Return a signed link that expires.

    Args:
        key: The signing key.
        base: Scheme and host.
        path: Path of the resource, such as /v1/shared/incidents/ID/picture.jpg.
        seconds: Seconds for which the link is valid.
    """
    until = int(time.time() + seconds)
    query = urlencode({"until": until, "signature": _signature(key, path, until)})
    return f"{base.rstrip('/')}{path}?{query}"


def is_signed(key: bytes, path: str, until: int, signature: str) -> bool:
    """Whether a link was signed with this key and has not expired."""
    own = _signature(key, path, until)
    return hmac.compare_digest(own.encode(), signature.encode()) and time.time() < until


def _signature(key: bytes, path: str, until: int) -> str:
    digest = hmac.new(key, f"{path}\n{until}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
