"""Signing in through the OpenID Connect provider."""

from __future__ import annotations

import secrets
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from lookout.services.gateway.access.people import actor_of, person
from lookout.services.gateway.access.provider import (
    CALLBACK,
    SIGN_OUT,
    Provider,
    ProviderError,
    TokenError,
    derived,
)
from lookout.services.gateway.guard import address_of, too_many
from lookout.services.gateway.messages import route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.routes.session import begin_session, is_secure

router = APIRouter(prefix="/oidc", tags=["session"])
_REDIRECT: dict[str, Any] = route(None, status=303, openapi_extra={"security": []})
_COOKIE: Final = "lookout-sign-in"
_PATH: Final = "/oidc"
#: seconds that a person has to sign in at the provider
_PATIENCE_S: Final = 900
#: seconds for which a finished sign-in is remembered; after that, no provider accepts its code any more
_USED_S: Final = 86_400.0


@router.get("/sign-in", **_REDIRECT)
def begin(request: Request) -> Response:
    """Redirect the browser to the provider, where the person signs in."""
    parts = parts_of(request)
    provider = _provider(parts)
    if wait_s := parts.failures.wait_s(address_of(request)):
        raise too_many(wait_s, "too many sign-ins from this address failed")
    secret = secrets.token_urlsafe(32)
    try:
        response = RedirectResponse(provider.sign_in_url(secret), 303)
    except ProviderError as error:
        raise _unavailable(error) from error
    response.set_cookie(
        _COOKIE,
        secret,
        max_age=_PATIENCE_S,
        httponly=True,
        secure=is_secure(parts),
        samesite="lax",
        path=_PATH,
    )
    return response


@router.get(CALLBACK.removeprefix(_PATH), **_REDIRECT)
def finish(request: Request) -> Response:
    """Begin a session for a person who comes back from the provider."""
    parts, address = parts_of(request), address_of(request)
    provider = _provider(parts)
    if wait_s := parts.failures.wait_s(address):
        raise too_many(wait_s, "too many sign-ins from this address failed")
    secret = request.cookies.get(_COOKIE)
    try:
        if not secret:
            raise TokenError("this browser did not begin a sign-in, or began it too long ago")
        claims = provider.finish(secret, dict(request.query_params))
        if not parts.once.take(derived(secret, "state"), _USED_S):
            raise TokenError("state: this sign-in was already used")
    except TokenError as error:
        parts.sign_ins.failed(address, "oidc")
        raise ProblemError(401, f"{error}; start again at {_PATH}/sign-in") from error
    except ProviderError as error:
        raise _unavailable(error) from error
    principal = person(parts.settings.oidc, claims)
    if principal is None:
        parts.sign_ins.failed(address, "oidc", actor_of(claims))
        raise ProblemError(
            403,
            "none of your groups may use this gateway: ask its administrator for an entry in "
            "LOOKOUT_OIDC__GRANTS",
        )
    parts.sign_ins.worked(principal, address, "oidc")
    response = begin_session(parts, principal)
    response.delete_cookie(_COOKIE, path=_PATH)
    return response


@router.get(SIGN_OUT.removeprefix(_PATH), **_REDIRECT)
def sign_out(request: Request) -> Response:
    """Redirect the browser to where it ends its session with the provider. Call this after DELETE
    /v1/session.
    """
    try:
        return RedirectResponse(_provider(parts_of(request)).sign_out_url(), 303)
    except ProviderError as error:
        raise _unavailable(error) from error


def _provider(parts: Parts) -> Provider:
    if parts.provider is None:
        raise ProblemError(404, "this gateway has no OpenID Connect provider: set LOOKOUT_OIDC__ISSUER")
    return parts.provider


def _unavailable(error: ProviderError) -> ProblemError:
    return ProblemError(503, f"the OpenID Connect provider cannot be used now: {error}", {"Retry-After": "5"})
