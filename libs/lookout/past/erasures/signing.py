"""Signs the records of `erasures.v1`, so that only the fleet can request an erasure, confirm one, or end a
membership."""

from __future__ import annotations

import json

from lookout.runtime.store.signing import FleetSigner
from lookout.v1.erasures_pb2 import Erasure, ErasureConfirmation, ErasureMember

ErasureMessage = Erasure | ErasureConfirmation | ErasureMember
"""The messages of `erasures.v1`."""


class ErasureSigner(FleetSigner):
    """Signs records with the fleet's token, and checks signatures. Without a token, every record is valid."""

    purpose = b"lookout-erasure"

    @property
    def key(self) -> str:
        """A text that changes whenever the token changes."""
        return self.mark()

    def sign(self, message: ErasureMessage) -> None:
        """Put the signature into a record."""
        message.signature = self.mark(_content(message))

    def check(self, message: ErasureMessage) -> bool:
        """Whether the fleet signed a record."""
        return self.is_right(message.signature, _content(message))


def _content(message: ErasureMessage) -> bytes:
    """Return a record's fields without the signature, as JSON bytes. They must stay the same in every
    release."""
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
