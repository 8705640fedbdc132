"""People's sessions. The browser has a random cookie, and the database has the cookie's digest."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import replace
from typing import Final

import sqlalchemy

from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import SESSIONS
from lookout.services.gateway.principal import Principal, as_token, of_token
from lookout.v1.access_pb2 import ApiToken
from lookout.wire import from_json, to_json

COOKIE: Final = "lookout-session"


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hex. A plain hash is enough, because secrets have 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Sessions:
    """The sessions in a database.

    Args:
        database: The history's database.
        seconds: Length of a session.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self._database, self.seconds = database, seconds

    def begin(self, principal: Principal) -> str:
        """Begin a session; return the cookie's value."""
        secret, now_ms = secrets.token_urlsafe(32), int(time.time() * 1000)
        expires_ms = now_ms + round(self.seconds * 1000)
        row = {
            "digest": digest(secret),
            "body": to_json(as_token(principal, expires_ms)),
            "csrf": secrets.token_urlsafe(32),
            "expires_ms": expires_ms,
        }
        with self._database.writing() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.expires_ms < now_ms))
            connection.execute(SESSIONS.insert(), row)
        return secret

    def find(self, secret: str) -> Principal | None:
        """Return the caller that a cookie's session belongs to; None if the session is unknown or over."""
        query = sqlalchemy.select(SESSIONS.c.body, SESSIONS.c.csrf, SESSIONS.c.expires_ms).where(
            SESSIONS.c.digest == digest(secret)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or row.expires_ms < time.time() * 1000:
            return None
        stored = from_json(row.body, ApiToken)
        return replace(of_token(stored), csrf=row.csrf, expires_ms=row.expires_ms, issuer=stored.created_by)

    def end(self, secret: str) -> None:
        """End a session."""
        with self._database.writing() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.digest == digest(secret)))
