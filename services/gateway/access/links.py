"""The one-time sign-in link of a local fleet, whose secret is in a file that only its owner can read."""

from __future__ import annotations

import hmac
import secrets
import threading
from pathlib import Path

from lookout.disk import private_folder, read_file, replace_file

_LIMIT = 4096


class SignInLink:
    """Holds the link's current secret. A secret is accepted only once; then a new secret replaces it in the
    file.

    Args:
        path: The file with the secret.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        private_folder(path.parent)
        self._renew()

    def take(self, secret: str) -> bool:
        """Return whether `secret` is the current secret. If so, replace the current secret, so that it is no
        longer valid.
        """
        with self._lock:
            try:
                content = read_file(self._path, limit=_LIMIT)
            except OSError:
                return False
            if not hmac.compare_digest(content, secret.encode("utf-8", "surrogatepass")):
                return False
            self._renew()
            return True

    def _renew(self) -> None:
        replace_file(self._path, secrets.token_urlsafe(32).encode())
