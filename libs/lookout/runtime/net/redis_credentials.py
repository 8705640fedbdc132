"""Redis credentials that are read at each connection. In a separate module, because importing redis is
slow.
"""

from __future__ import annotations

from collections.abc import Callable

import redis
from redis.credentials import CredentialProvider

from lookout.errors import StartupError


class RedisCredentials(CredentialProvider):
    """User name and password, read at each connection because a password file may have changed.

    Args:
        user: The user name; None: the default user.
        password: Reads the password; raises `StartupError` if it cannot.
    """

    def __init__(self, user: str | None, password: Callable[[], str]) -> None:
        self._user, self._password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, with the user name before it if there is one."""
        try:
            password = self._password()
        except StartupError as error:
            raise redis.AuthenticationError(str(error)) from None
        return (password,) if self._user is None else (self._user, password)
