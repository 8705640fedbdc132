"""Tokens, and the audit log."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import sqlalchemy
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from lookout.services.gateway.access.sessions import digest
from lookout.services.gateway.guard import Administrator
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.tables import AUDIT
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parameters import Moment, parse_ms
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.access_pb2 import ApiToken, AuditEntry, Role
from lookout.v1.gateway_pb2 import ApiTokenList, AuditPage, NewApiToken
from lookout.wire import ACCESS, check_tenant, from_json, is_camera_id, to_json

router = APIRouter(prefix="/v1", tags=["access"])
_Id = Annotated[str, Path(max_length=64)]


@router.get("/tokens", **route(ApiTokenList))
def list_tokens(request: Request, principal: Administrator) -> Response:
    """List tokens, without their secrets."""
    with parts_of(request).database.reading() as connection:
        rows = queries.documents(connection, ACCESS.name)
    tokens = [from_json(row.body, ApiToken) for row in rows]
    visible = [token for token in tokens if _within(principal, token)]
    for token in visible:
        token.ClearField("digest")
    return answer(ApiTokenList(tokens=visible))


@router.post("/tokens", **route(NewApiToken, takes=ApiToken, status=201))
def make_token(
    request: Request,
    principal: Administrator,
    asked: Asked,
    wanted: Annotated[ApiToken, Depends(body_of(ApiToken))],
) -> Response:
    """Create a token. Its secret is shown only in this answer."""
    parts = parts_of(request)
    if not wanted.name.strip():
        raise ProblemError(400, "name: say who the token is for")
    if wanted.role == Role.ROLE_UNSPECIFIED:
        raise ProblemError(400, "role: choose viewer, operator or administrator")
    if wanted.HasField("expires") and wanted.expires.ToMilliseconds() <= time.time() * 1000:
        raise ProblemError(400, "expires: must be later than now")
    if wrong := [pattern for pattern in wanted.cameras if not is_camera_id(pattern)]:
        raise ProblemError(400, f"cameras: {wrong[0][:40]!r} is neither an id nor a glob")
    for tenant in wanted.tenants:
        check_tenant(tenant)
    if not _within(principal, wanted):
        raise ProblemError(
            403, "cameras, tenants: a token must not see more than you do; choose some of yours"
        )
    identity = secrets.token_hex(8)
    secret = f"{identity}.{secrets.token_urlsafe(32)}"
    token = ApiToken(
        id=identity,
        name=wanted.name.strip(),
        role=wanted.role,
        cameras=wanted.cameras,
        tenants=wanted.tenants,
        created_by=principal.actor,
        digest=digest(secret),
    )
    token.created.GetCurrentTime()
    if wanted.HasField("expires"):
        token.expires.CopyFrom(wanted.expires)
    with parts.writes.once(principal, asked, ACCESS.name) as written:
        if written is not None:
            raise ProblemError(
                409, f"this request already created token {written}, whose secret is not shown again"
            )
        audit = entry("token.make", identity)
        parts.writes.write(principal, asked, ACCESS.name, {identity: to_json(token)}, audit)
    token.ClearField("digest")
    return answer(NewApiToken(token=token, secret=secret), 201)


@router.delete("/tokens/{identity}", **route(None, status=204))
def revoke(request: Request, principal: Administrator, asked: Asked, identity: _Id) -> Response:
    """Revoke a token, so that its next call is rejected."""
    parts = parts_of(request)
    with parts.writes.once(principal, asked, ACCESS.name) as written:
        if written is None:
            with parts.database.reading() as connection:
                row = queries.document(connection, ACCESS.name, identity)
            if row is None or not _within(principal, from_json(row.body, ApiToken)):
                raise not_found("token", identity)
            parts.writes.write(
                principal, asked, ACCESS.name, {identity: None}, entry("token.revoke", identity)
            )
    return Response(status_code=204)


def _within(principal: Principal, token: ApiToken) -> bool:
    """Return whether a token sees no more cameras than the caller who creates it."""
    if principal.cameras and not (token.cameras and set(token.cameras) <= set(principal.cameras)):
        return False
    return not principal.tenants or (bool(token.tenants) and set(token.tenants) <= set(principal.tenants))


@router.get("/audit", **route(AuditPage))
def audit(
    request: Request,
    principal: Administrator,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    action: Annotated[str | None, Query(max_length=64)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[int | None, Query(ge=0, description="`next` from the previous page")] = None,
) -> Response:
    """List who changed what, and who viewed which pictures and clips or searched for what; newest first."""
    if not principal.unlimited:
        raise ProblemError(403, "the audit log needs an administrator of every camera and tenant")
    query = sqlalchemy.select(AUDIT.c.offset, AUDIT.c.body).order_by(AUDIT.c.offset.desc()).limit(limit + 1)
    conditions = {"actor": actor, "action": action}
    for name, value in conditions.items():
        if value is not None:
            query = query.where(AUDIT.c[name] == value)
    if (begin := parse_ms("since", since)) is not None:
        query = query.where(AUDIT.c.time_ms >= begin)
    if (end := parse_ms("until", until)) is not None:
        query = query.where(AUDIT.c.time_ms < end)
    if after is not None:
        query = query.where(AUDIT.c.offset < after)
    with parts_of(request).database.reading() as connection:
        rows = connection.execute(query).all()
    page = rows[:limit]
    following = str(page[-1].offset) if len(rows) > limit else ""
    return answer(AuditPage(entries=[from_json(row.body, AuditEntry) for row in page], next=following))
