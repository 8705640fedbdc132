"""Maps people who signed in with OpenID Connect to callers of the gateway."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from lookout.services.gateway.oidc_settings import OidcSettings
from lookout.services.gateway.principal import Principal
from lookout.text import clean
from lookout.v1.access_pb2 import Role

_NAME_CHARS: Final = 100
_ROLES: Final = {
    "viewer": Role.ROLE_VIEWER,
    "operator": Role.ROLE_OPERATOR,
    "administrator": Role.ROLE_ADMINISTRATOR,
}


def person(settings: OidcSettings, claims: Mapping[str, Any]) -> Principal | None:
    """Return the caller that verified claims describe; None if none of the person's groups has a grant.

    Only the first matching grant counts. Merging grants would give too many rights: an operator of one tenant
    who is a viewer of another would become an operator of both.
    """
    groups = _groups(claims, settings.claim)
    grant = next((grant for grant in settings.grants if grant.group in groups), None)
    if grant is None:
        return None
    return Principal(
        actor_of(claims),
        _ROLES[grant.role],
        grant.cameras,
        grant.tenants,
        expires_ms=int(claims["exp"] * 1000),
        issuer=settings.issuer,
    )


def actor_of(claims: Mapping[str, Any]) -> str:
    """Return a person's name and part of the digest of the claim `sub`. The name alone is not enough, because
    people may choose their names freely, and a name may pass to another person.
    """
    name = next(
        (
            value
            for key in ("preferred_username", "email", "name", "client_id")
            if isinstance(value := claims.get(key), str) and value.strip()
        ),
        "",
    )
    subject = hashlib.sha256(f"{claims['iss']} {claims['sub']}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{clean(name.strip(), _NAME_CHARS)}#{subject[:10]}"


def _groups(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    value: Any = claims.get(path)  # the name of a claim may itself contain dots, for example if it is a URL
    if value is None:
        value = claims
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    values = [value] if isinstance(value, str) else value
    return (
        frozenset(entry for entry in values if isinstance(entry, str))
        if isinstance(values, list)
        else frozenset()
    )
