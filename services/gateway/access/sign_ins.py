"""Records successful and failed sign-ins: in audit.v1, and for the waits of addresses."""

from __future__ import annotations

import secrets
from typing import Final

from lookout.services.gateway.access.limits import CallRate, Failures
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.writes import Asking, Writes, entry
from lookout.v1.access_pb2 import Role

#: maximum number of audit entries about failed sign-ins per minute, all addresses together, so that a flood
#: of calls does not flood the log
FAILED_PER_MINUTE: Final = 60
_NOBODY: Final = Principal("", Role.ROLE_UNSPECIFIED)


class SignIns:
    """Records sign-ins.

    Args:
        failures: Failed sign-ins by address.
        writes: Writes audit.v1. Sign-ins do not wait for Kafka, because people who investigate an outage
            must be able to sign in.
    """

    def __init__(self, failures: Failures, writes: Writes) -> None:
        self._failures, self._writes = failures, writes
        self._rate = CallRate(FAILED_PER_MINUTE)

    def worked(self, principal: Principal, address: str, how: str) -> None:
        """Record a successful sign-in.

        Args:
            principal: Who signed in.
            address: The address of the call.
            how: `link` or `oidc`.
        """
        self._failures.clear(address)
        self._note(principal, address, "sign-in", how)

    def failed(self, address: str, how: str, actor: str = "") -> None:
        """Record a failed sign-in.

        Args:
            address: The address of the call.
            how: `link`, `oidc` or `token`.
            actor: Who tried; empty: unknown.
        """
        self._failures.add(address)
        if not self._rate.wait_s(""):
            principal = Principal(actor, Role.ROLE_UNSPECIFIED) if actor else _NOBODY
            self._note(principal, address, "sign-in.failed", how)

    def _note(self, principal: Principal, address: str, action: str, how: str) -> None:
        asked = Asking(secrets.token_hex(16), repeated=False, address=address)
        self._writes.note_soon(principal, asked, entry(action, how))
