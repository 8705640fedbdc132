"""Settings for signing in with an OpenID Connect provider, and for the rights of people who sign in so."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from lookout.wire import WireError, check_tenant, is_camera_id


class Grant(BaseModel, frozen=True, extra="forbid"):
    """What the members of a group may do."""

    group: str
    role: Literal["viewer", "operator", "administrator"]
    cameras: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    @field_validator("cameras")
    @classmethod
    def _are_cameras(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [pattern for pattern in value if not is_camera_id(pattern)]:
            raise ValueError(f"{wrong[0][:40]!r} is neither an id nor a glob of cameras")
        return value

    @field_validator("tenants")
    @classmethod
    def _are_tenants(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for tenant in value:
            try:
                check_tenant(tenant)
            except WireError as error:
                raise ValueError(str(error)) from None
        return value


class OidcSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of the provider; each field is `LOOKOUT_OIDC__<FIELD>`."""

    issuer: str = Field(
        "", description="issuer of the OpenID Connect provider, an https URL; empty: no provider"
    )
    client_id: str = Field("", description="client id of this gateway at the provider")
    client_secret_file: Path | None = Field(
        None, description="file with the client secret; unset: the provider requires none (PKCE protects)"
    )
    scopes: tuple[str, ...] = Field(
        ("profile",),
        description="scopes in addition to openid, as a JSON list; some providers need one for the claim",
    )
    claim: str = Field(
        "groups",
        min_length=1,
        description="claim that holds a person's groups or roles; dots separate nested names, as in "
        "realm_access.roles",
    )
    grants: tuple[Grant, ...] = Field(
        (),
        description='rights of groups, as JSON: [{"group": "guards", "role": "operator", "tenants": '
        '["north"], "cameras": ["gate*"]}]; only the first entry that names one of the '
        "person's groups applies",
    )
    audience: str = Field(
        "",
        description="audience of the provider's access tokens that programs send as Bearer tokens; empty: "
        "such tokens are rejected",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.issuer:
            return self
        address = urlsplit(self.issuer)
        if address.scheme != "https" and not (address.scheme == "http" and _is_loopback(address.hostname)):
            raise ValueError("issuer: must be an https URL; http is allowed only on this machine's loopback")
        if address.query or address.fragment or "@" in address.netloc:
            raise ValueError("issuer: must not have a query, a fragment or a user name")
        if not self.client_id:
            raise ValueError("client_id: missing; give this gateway's client id at the provider")
        if not self.grants:
            raise ValueError("grants: without grants nobody may do anything; give a group and its role")
        if self.audience == self.client_id:
            raise ValueError("audience: must differ from client_id, whose tokens are only for people")
        return self


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
