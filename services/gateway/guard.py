"""Checks every call: who the caller is, what the caller may do, and whether another site tricked a browser
into the call.
"""

from __future__ import annotations

import hmac
import math
from typing import Annotated, Final

from fastapi import Depends, Request

from lookout.services.gateway.access.people import person
from lookout.services.gateway.access.provider import ProviderError, TokenError
from lookout.services.gateway.access.sessions import COOKIE
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.v1.access_pb2 import Role

CSRF_HEADER: Final = "x-csrf-token"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def caller(request: Request) -> Principal:
    """Return a request's caller.

    Raises:
        ProblemError: The caller is unknown or calls too often, or another site may have made a browser
            request a change.
    """
    parts = parts_of(request)
    address = address_of(request)
    wait_s = parts.failures.wait_s(address)
    if wait_s:
        raise too_many(wait_s, "too many sign-ins from this address failed")
    principal = _identify(request)
    if principal is None:
        shown = "authorization" in request.headers
        if shown:
            parts.sign_ins.failed(address, "token")
        raise ProblemError(
            401,
            "the token is unknown or has expired: ask an administrator for a new one"
            if shown
            else "sign in, or send the header authorization: Bearer TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )
    wait_s = parts.rate.wait_s(principal.actor)
    if wait_s:
        raise too_many(
            wait_s,
            f"you made more than {parts.settings.calls_per_minute} calls in a minute, which is the limit",
        )
    return principal


def still_is(request: Request, principal: Principal) -> bool:
    """Return whether the request's caller would still be accepted. Long responses check this repeatedly."""
    try:
        return _identify(request) == principal
    except ProblemError:
        return False


def too_many(wait_s: float, why: str) -> ProblemError:
    """Return the error for a caller that must wait `wait_s` seconds."""
    seconds = math.ceil(wait_s)
    return ProblemError(429, f"{why}: wait {seconds} s", {"Retry-After": str(seconds)})


def address_of(request: Request) -> str:
    """Return the address that a call comes from; behind a trusted proxy, the address that the proxy
    reports.
    """
    return request.client.host[:64] if request.client is not None else ""


def _identify(request: Request) -> Principal | None:
    parts = parts_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme:
        return _bearer(parts, token.strip()) if scheme.lower() == "bearer" else None
    cookie = request.cookies.get(COOKIE)
    principal = parts.sessions.find(cookie) if cookie else None
    if principal is not None and request.method not in _SAFE:
        shown = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(shown.encode(), principal.csrf.encode()):
            raise ProblemError(
                403, f"a change needs the header {CSRF_HEADER}; get its value from GET /v1/session"
            )
    return principal


def _bearer(parts: Parts, token: str) -> Principal | None:
    """Return the caller with a bearer token, which is either from access.v1 or from the provider; None if the
    token is invalid.
    """
    if parts.provider is None or token.count(".") != 2 or not (audience := parts.settings.oidc.audience):
        return parts.tokens.find(token)
    try:
        return person(parts.settings.oidc, parts.provider.claims(token, audience))
    except TokenError:
        return None
    except ProviderError as error:
        raise ProblemError(
            503, f"the OpenID Connect provider cannot be used now: {error}", {"Retry-After": "5"}
        ) from error


def _needs(role: Role) -> object:
    def check(principal: Annotated[Principal, Depends(caller)]) -> Principal:
        principal.check_role(role)
        return principal

    return Depends(check)


Viewer = Annotated[Principal, _needs(Role.ROLE_VIEWER)]
Operator = Annotated[Principal, _needs(Role.ROLE_OPERATOR)]
Administrator = Annotated[Principal, _needs(Role.ROLE_ADMINISTRATOR)]
