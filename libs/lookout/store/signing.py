"""Addresses in the directory carry the fleet's signature: a caller shows the fleet's token to no other.

Redis is an index that others may write. Whoever does could name an address of his own, and callers would
show it their token. So a holder signs its address with the token (HMAC-SHA256), and a reader that has a
token leaves out what is not signed.
"""

from __future__ import annotations

import hashlib
import hmac

from lookout.net import GrpcSecurity
from lookout.net.grpc_security import Token

_PURPOSE = b"lookout-address"


class AddressSigner:
    """Signs and checks addresses of holders. Without a token every address counts as it is.

    Args:
        token: The fleet's, read again when its file changes. None: there is none.
    """

    def __init__(self, token: Token | None) -> None:
        self._token = token

    @classmethod
    def of(cls, security: GrpcSecurity | None) -> AddressSigner:
        """As the settings say."""
        return cls(None if security is None else Token.of(security))

    def sign(self, stage: int, pod: str, address: str) -> str:
        """The address as it stands in the directory."""
        if self._token is None:
            return address
        return f"{address} {self._mark(stage, pod, address)}"

    def check(self, stage: int, pod: str, signed: str) -> str | None:
        """The address of an entry; None where the fleet's signature is missing or wrong."""
        address, _, mark = signed.partition(" ")
        if self._token is None:
            return address
        return (
            address if hmac.compare_digest(mark.encode(), self._mark(stage, pod, address).encode()) else None
        )

    def _mark(self, stage: int, pod: str, address: str) -> str:
        assert self._token is not None
        facts = b"".join(
            len(part).to_bytes(4, "big") + part
            for part in (_PURPOSE, str(stage).encode(), pod.encode(), address.encode())
        )
        return hmac.new(self._token.value().encode(), facts, hashlib.sha256).hexdigest()
