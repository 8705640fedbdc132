"""Signs records of erasures for the fleet, so that nobody else can request an erasure, confirm one, or
leave."""

from __future__ import annotations

import json

from lookout.runtime.net import GrpcSecurity
from lookout.runtime.net.grpc_security import Token
from lookout.runtime.store.signing import FleetSigner
from lookout.v1.erasures_pb2 import Erasure, ErasureConfirmation, ErasureMember

ErasureMessage = Erasure | ErasureConfirmation | ErasureMember
"""The messages of `erasures.v1`."""


class ErasureSigner:
    """Signs records with the fleet's token, and checks them. Without a token every record counts.

    Args:
        token: The fleet's token; None: it has none.
    """

    def __init__(self, token: Token | None) -> None:
        self._signer = FleetSigner(token, "lookout-erasure")

    @classmethod
    def of(cls, security: GrpcSecurity | None) -> ErasureSigner:
        """Make the signer that the settings describe."""
        return cls(None if security is None else Token.of(security))

    @property
    def signs(self) -> bool:
        """Whether the fleet has a token."""
        return self._signer.signs

    @property
    def key(self) -> str:
        """A text that changes whenever the token does."""
        return self._signer.mark()

    def sign(self, message: ErasureMessage) -> None:
        """Put the signature into a record."""
        message.signature = self._signer.mark(_content(message))

    def check(self, message: ErasureMessage) -> bool:
        """Whether the fleet signed a record."""
        return self._signer.is_right(message.signature, _content(message))


def _content(message: ErasureMessage) -> bytes:
    """Return everything of a record but its signature; the same bytes for the same facts in every release."""
    facts: list[object]
    if isinstance(message, Erasure):
        facts = [message.id, message.camera, message.begin_us, message.end_us, message.whole]
        facts += [message.requested_us, message.requested_by]
    elif isinstance(message, ErasureConfirmation):
        facts = [message.erasure, message.instance, message.service, message.confirmed_us]
        facts += [message.camera, message.begin_us, message.end_us]
        facts += [[part.what, part.count] for part in message.parts]
    else:
        facts = [message.instance, message.service, message.since_us, message.announced_us, message.left]
    return json.dumps([message.DESCRIPTOR.name, *facts], separators=(",", ":")).encode()
