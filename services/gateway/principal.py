"""Callers: a name, a role, and the cameras and tenants that the caller may see."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from lookout.services.gateway.problems import ProblemError
from lookout.text import clean
from lookout.v1.access_pb2 import ApiToken, Role
from lookout.v1.gateway_pb2 import SessionView
from lookout.v1.watches_pb2 import Watch
from lookout.wire import names_id, tenant_of
from lookout.wire.message_json import enum_name

#: seconds between checks that the caller of an endless response may still receive it
RECHECK_S: Final = 10.0
_GLOB: Final = re.compile(r"[*?\[]")


def role_name(role: Role) -> str:
    """Return a role's name: viewer, operator or administrator."""
    return enum_name("Role", Role.Name(role))


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        actor: The caller's name in records and the audit log.
        role: The role, which decides what the caller may do.
        cameras: Ids or globs of the cameras that the caller may see; empty: all.
        tenants: Tenants whose cameras the caller may see; empty: all.
        csrf: CSRF token of a cookie's session; changes must carry it.
        expires_ms: When the token or session expires, Unix milliseconds; 0: never.
        issuer: The OpenID Connect provider through which the person signed in; empty: none.
    """

    actor: str
    role: Role
    cameras: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    csrf: str = ""
    expires_ms: int = 0
    issuer: str = ""

    @property
    def unlimited(self) -> bool:
        """Whether the caller sees every camera of every tenant."""
        return not self.cameras and not self.tenants

    def sees(self, camera: str, tenant: str) -> bool:
        """Return whether the caller may see a camera. An empty `tenant`, as in records, means `default`."""
        return self.sees_tenant(tenant) and (
            not self.cameras or any(names_id(pattern, camera) for pattern in self.cameras)
        )

    def sees_tenant(self, tenant: str) -> bool:
        """Return whether the caller may see what belongs to a tenant as a whole."""
        return not self.tenants or tenant_of(tenant) in self.tenants

    def sees_watch(self, watch: Watch, cameras: Iterable[tuple[str, str]]) -> bool:
        """Return whether the caller may see a watch, that is, may see at least one camera that the watch
        covers.

        Args:
            watch: The watch.
            cameras: Ids and tenants of cameras that the caller may see.
        """
        if self.unlimited:
            return True
        if watch.tenant and not self.sees_tenant(watch.tenant):
            return False
        if self.owns_watch(watch):
            return True
        return any(
            (not watch.tenant or watch.tenant == tenant_of(tenant))
            and (not watch.cameras or any(names_id(pattern, camera) for pattern in watch.cameras))
            for camera, tenant in cameras
        )

    def owns_watch(self, watch: Watch) -> bool:
        """Return whether the caller may change a watch, that is, may see every camera that it covers."""
        if self.tenants and (not watch.tenant or watch.tenant not in self.tenants):
            return False
        if not self.cameras:
            return True
        return bool(watch.cameras) and all(
            pattern in self.cameras or (not _GLOB.search(pattern) and self.sees(pattern, watch.tenant))
            for pattern in watch.cameras
        )

    def check_role(self, role: Role) -> None:
        """Check that the caller has a role or a higher one.

        Raises:
            ProblemError: The caller lacks the role.
        """
        if self.role < role:
            has = f"{clean(self.actor, 60)} has the role {role_name(self.role)}"
            raise ProblemError(403, f"this needs the role {role_name(role)}; {has}")

    def view(self, sign_out_url: str = "") -> SessionView:
        """Return the API's view of the caller.

        Args:
            sign_out_url: Where the caller ends the session at the provider; empty: nowhere.
        """
        message = SessionView(
            actor=self.actor,
            role=self.role,
            cameras=self.cameras,
            tenants=self.tenants,
            csrf=self.csrf,
            sign_out_url=sign_out_url,
        )
        if self.expires_ms:
            message.expires.FromMilliseconds(self.expires_ms)
        return message


def of_token(token: ApiToken) -> Principal:
    """Return the caller that a token stands for."""
    return Principal(
        token.name,
        token.role,
        tuple(token.cameras),
        tuple(token.tenants),
        expires_ms=token.expires.ToMilliseconds() if token.HasField("expires") else 0,
    )


def as_token(principal: Principal, expires_ms: int) -> ApiToken:
    """Return a caller in the form in which sessions store it."""
    return ApiToken(
        name=principal.actor,
        role=principal.role,
        cameras=principal.cameras,
        tenants=principal.tenants,
        expires=_timestamp(expires_ms),
        created_by=principal.issuer,
    )


def _timestamp(at_ms: int) -> Timestamp:
    message = Timestamp()
    message.FromMilliseconds(at_ms)
    return message
