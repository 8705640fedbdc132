"""Signs the directory's addresses with the fleet's token, so that callers send the token to genuine addresses
only.

Redis is an index that others may write to. Anyone who can write there could enter a false address, and
callers would send their token to it. So a holder signs its address with the token (HMAC-SHA256), and readers
that have a token ignore unsigned addresses.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import ClassVar, Self

from lookout.runtime.net import GrpcSecurity
from lookout.runtime.net.grpc_security import Token


class FleetSigner:
    """Signs facts with the fleet's token; without the token nobody can make a valid signature.

    Without a token nothing is signed, and every signature counts as valid.

    Args:
        token: The fleet's token, read again when its file changes; None: the fleet has none.

    Attributes:
        purpose: What is signed. A signature for one purpose is not valid for another.
    """

    purpose: ClassVar[bytes]

    def __init__(self, token: Token | None) -> None:
        self._token = token

    @classmethod
    def of(cls, security: GrpcSecurity | None) -> Self:
        """Make the signer that the settings describe."""
        return cls(None if security is None else Token.of(security))

    @property
    def signs(self) -> bool:
        """Whether the fleet has a token."""
        return self._token is not None

    def mark(self, *facts: bytes) -> str:
        """Return the signature of facts; empty if there is no token."""
        if self._token is None:
            return ""
        parts = (self.purpose, *facts)
        # Each part is preceded by its length, so that no two lists of facts give the same bytes.
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._token.value().encode(), message, hashlib.sha256).hexdigest()

    def is_right(self, mark: str, *facts: bytes) -> bool:
        """Whether a signature matches the facts; always true without a token."""
        return self._token is None or hmac.compare_digest(mark.encode(), self.mark(*facts).encode())


class AddressSigner(FleetSigner):
    """Signs and checks addresses of holders. Without a token every address is accepted."""

    purpose = b"lookout-address"

    def sign(self, stage: int, pod: str, address: str) -> str:
        """Return the address with its signature, as it is written to the directory."""
        if not self.signs:
            return address
        return f"{address} {self.mark(*_facts(stage, pod, address))}"

    def check(self, stage: int, pod: str, signed: str) -> str | None:
        """Return the address in a signed entry; None if the fleet's signature is missing or wrong."""
        address, _, mark = signed.partition(" ")
        return address if self.is_right(mark, *_facts(stage, pod, address)) else None


def _facts(stage: int, pod: str, address: str) -> tuple[bytes, ...]:
    return str(stage).encode(), pod.encode(), address.encode()
