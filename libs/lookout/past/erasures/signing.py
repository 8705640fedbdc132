"""Confirmations carry the fleet's signature: nobody else can say that a member has erased what it holds."""

from __future__ import annotations

import json

from lookout.runtime.net import GrpcSecurity
from lookout.runtime.net.grpc_security import Token
from lookout.runtime.store.signing import FleetSigner
from lookout.v1.erasures_pb2 import ErasureConfirmation


class ConfirmationSigner:
    """Signs confirmations with the fleet's token, and checks them. Without a token every confirmation counts.

    Args:
        token: The fleet's. None: there is none.
    """

    def __init__(self, token: Token | None) -> None:
        self._signer = FleetSigner(token, "lookout-erasure-confirmation")

    @classmethod
    def of(cls, security: GrpcSecurity | None) -> ConfirmationSigner:
        """As the settings say."""
        return cls(None if security is None else Token.of(security))

    @property
    def signs(self) -> bool:
        """Whether the fleet has a token."""
        return self._signer.signs

    def sign(self, confirmation: ErasureConfirmation) -> None:
        """Put the signature into a confirmation."""
        confirmation.signature = self._signer.mark(_content(confirmation))

    def check(self, confirmation: ErasureConfirmation) -> bool:
        """Whether the fleet signed it."""
        return self._signer.is_right(confirmation.signature, _content(confirmation))


def _content(confirmation: ErasureConfirmation) -> bytes:
    """Everything of a confirmation but its signature; the same bytes for the same facts in every release."""
    parts = [[part.what, part.count] for part in confirmation.parts]
    facts = [confirmation.erasure, confirmation.instance, confirmation.service, confirmation.confirmed_us]
    return json.dumps([*facts, parts], separators=(",", ":")).encode()
