"""Reads notifications' secrets: files in one folder, which are read again for every message."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from lookout.disk import read_file
from lookout.rules.notifications import secret_file
from lookout.services.notify.messages import DeliveryError


class Secrets:
    """The folder of secrets.

    Args:
        folder: The folder; None: the service has no secrets.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return the path of a secret.

        Args:
            name: The file's name, already checked by `check_notification`.

        Raises:
            DeliveryError: The service has no folder of secrets.
        """
        if self._folder is None:
            raise DeliveryError(f"{name}: this service has no folder of secrets; set LOOKOUT_NOTIFY_SECRETS")
        return self._folder / name

    def remove_own(self, notification: str) -> None:
        """Remove the file that `lookout notify` wrote for a notification, if it exists."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / secret_file(notification)).unlink()

    def fingerprint(self, name: str) -> bytes:
        """Return a digest of a secret's content; empty if the secret cannot be read."""
        try:
            return hashlib.sha256(self.read(name).encode()).digest()
        except DeliveryError:
            return b""

    def read(self, name: str) -> str:
        """Read a secret.

        Raises:
            DeliveryError: The secret cannot be read; the text names the file.
        """
        path = self.path(name)
        try:
            text = read_file(path, links=True).decode().strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise DeliveryError(f"{path}: {reason}; put the secret into this file") from error
        if not text:
            raise DeliveryError(f"{path} is empty: put the secret into this file")
        return text
