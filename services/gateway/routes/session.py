"""Signing in and out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from lookout.services.gateway.access.provider import SIGN_OUT
from lookout.services.gateway.access.sessions import COOKIE
from lookout.services.gateway.guard import Viewer, address_of, too_many
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.v1.access_pb2 import Role
from lookout.v1.gateway_pb2 import SessionView

router = APIRouter(tags=["session"])
#: seconds for which a used link is remembered, because two gateways may read its secret before one replaces
#: it
_LINK_S = 86_400.0
_REDIRECT: dict[str, Any] = route(None, status=303)


@router.get("/sign-in/{secret}", **_REDIRECT)
def sign_in(request: Request, secret: str) -> Response:
    """Begin an administrator's session with the one-time link that `lookout up` prints."""
    parts, address = parts_of(request), address_of(request)
    if wait_s := parts.failures.wait_s(address):
        raise too_many(wait_s, "too many sign-ins from this address failed")
    if parts.link is None or not parts.link.take(secret) or not parts.once.take(secret, _LINK_S):
        parts.sign_ins.failed(address, "link")
        raise ProblemError(
            401,
            "this sign-in link was already used, or the fleet was restarted since: run `lookout sign-in` "
            "for a new one",
        )
    principal = Principal("local", Role.ROLE_ADMINISTRATOR)
    parts.sign_ins.worked(principal, address, "link")
    return begin_session(parts, principal)


def begin_session(parts: Parts, principal: Principal) -> Response:
    """Return the response that begins a session: a cookie, and a redirect to the first page."""
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        parts.sessions.begin(principal),
        max_age=round(parts.sessions.seconds),
        httponly=True,
        secure=is_secure(parts),
        samesite="lax",
        path="/",
    )
    return response


def is_secure(parts: Parts) -> bool:
    """Return whether browsers reach this gateway over TLS, so that cookies must be secure."""
    settings = parts.settings
    return settings.http_cert_file is not None or (settings.public_url or "").startswith("https://")


@router.get("/v1/session", **route(SessionView))
def session(request: Request, principal: Viewer) -> Response:
    """Return who the caller is, and what the caller may see and do."""
    parts = parts_of(request)
    of_provider = parts.provider is not None and principal.issuer == parts.provider.issuer
    view = principal.view(SIGN_OUT if of_provider else "")
    view.searches = parts.settings.recall is not None
    return answer(view)


@router.delete("/v1/session", **route(None, status=204))
def sign_out(request: Request, principal: Viewer) -> Response:
    """End this session."""
    if cookie := request.cookies.get(COOKIE):
        parts_of(request).sessions.end(cookie)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response
