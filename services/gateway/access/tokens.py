"""Programs' tokens: records of access.v1, which contain only the digest of the secret."""

from __future__ import annotations

import time

import sqlalchemy

from lookout.services.gateway.access.sessions import digest
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import DOCUMENTS
from lookout.services.gateway.principal import Principal, of_token
from lookout.v1.access_pb2 import ApiToken
from lookout.wire import ACCESS, from_json


class Tokens:
    """The tokens in the history.

    Args:
        database: The history's database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, secret: str) -> Principal | None:
        """Return the caller whose token has this secret; None if no valid token has this secret."""
        identity = secret.partition(".")[0]
        query = sqlalchemy.select(DOCUMENTS.c.body).where(
            DOCUMENTS.c.topic == ACCESS.name, DOCUMENTS.c.key == identity[:64]
        )
        with self._database.reading() as connection:
            body = connection.scalar(query)
        if body is None:
            return None
        token = from_json(body, ApiToken)
        if token.digest != digest(secret):
            return None
        principal = of_token(token)
        return None if 0 < principal.expires_ms < time.time() * 1000 else principal
