"""What the fleet's token signs. An address in the directory: a caller shows the token to no other.

Redis is an index that others may write. Anyone who does could name an address of his own, and callers would
show it their token. So a holder signs its address with the token (HMAC-SHA256), and a reader that has a
token leaves out what is not signed.
"""

from __future__ import annotations

import hashlib
import hmac

from lookout.runtime.net import GrpcSecurity
from lookout.runtime.net.grpc_security import Token


class FleetSigner:
    """Marks facts with the fleet's token: who cannot read the token cannot make one.

    Args:
        token: The fleet's, read again when its file changes, or None: then nothing is marked.
        purpose: What is marked: a mark for one purpose is not valid for another.
    """

    def __init__(self, token: Token | None, purpose: str) -> None:
        self._token, self._purpose = token, purpose.encode()

    @property
    def signs(self) -> bool:
        """Whether the fleet has a token."""
        return self._token is not None

    def mark(self, *facts: bytes) -> str:
        """The mark of facts; empty where there is no token."""
        if self._token is None:
            return ""
        parts = (self._purpose, *facts)
        # Lengths stand before the parts, so that no two lists of facts give the same bytes.
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._token.value().encode(), message, hashlib.sha256).hexdigest()

    def is_right(self, mark: str, *facts: bytes) -> bool:
        """Whether a mark is that of the facts; without a token every mark is."""
        return self._token is None or hmac.compare_digest(mark.encode(), self.mark(*facts).encode())


class AddressSigner:
    """Signs and checks addresses of holders. Without a token every address counts as it is.

    Args:
        token: The fleet's, or None if it has no token.
    """

    def __init__(self, token: Token | None) -> None:
        self._signer = FleetSigner(token, "lookout-address")

    @classmethod
    def of(cls, security: GrpcSecurity | None) -> AddressSigner:
        """As the settings say."""
        return cls(None if security is None else Token.of(security))

    def sign(self, stage: int, pod: str, address: str) -> str:
        """The address as it stands in the directory."""
        if not self._signer.signs:
            return address
        return f"{address} {self._signer.mark(*_facts(stage, pod, address))}"

    def check(self, stage: int, pod: str, signed: str) -> str | None:
        """The address of an entry; None where the fleet's signature is missing or wrong."""
        address, _, mark = signed.partition(" ")
        return address if self._signer.is_right(mark, *_facts(stage, pod, address)) else None


def _facts(stage: int, pod: str, address: str) -> tuple[bytes, ...]:
    return str(stage).encode(), pod.encode(), address.encode()
