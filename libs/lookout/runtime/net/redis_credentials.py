"""Redis's password, read when a connection is made. A module of its own: importing redis takes long."""

from __future__ import annotations

from collections.abc import Callable

import redis
from redis.credentials import CredentialProvider

from lookout.errors import StartupError


class RedisCredentials(CredentialProvider):
    """User name and password at the moment of connecting: a password file may have changed.

    Args:
        user: The user name; None: the default user.
        password: Reads the password; raises `StartupError` where it cannot be read.
    """

    def __init__(self, user: str | None, password: Callable[[], str]) -> None:
        self._user, self._password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The password, after the user name if there is one."""
        try:
            password = self._password()
        except StartupError as error:
            raise redis.AuthenticationError(str(error)) from None
        return (password,) if self._user is None else (self._user, password)
