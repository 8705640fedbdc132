"""Films that are sent as a camera's footage, to try watches without a camera."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from lookout.administration import RecordPlace
from lookout.rules import covers
from lookout.services.gateway import films
from lookout.services.gateway.guard import Administrator
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.routes.cameras import check_name, check_owner
from lookout.services.gateway.routes.uploads import BODY
from lookout.services.gateway.uploads import patient
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.gateway_pb2 import Film
from lookout.wire import (
    AUDIT,
    CAMERAS,
    SEGMENTS,
    WireError,
    check_tenant,
    from_json,
    label_headers,
    tenant_of,
)

router = APIRouter(prefix="/v1", tags=["cameras"])
#: the path whose bodies may be as large as films
PATH: Final = "/v1/films"
#: one film at a time, because two might not fit into the pod's temporary folder
_one_at_a_time: Final = asyncio.Lock()
_Camera = Annotated[str, Query(max_length=200, description="the camera's id")]
_Tenant = Annotated[str, Query(max_length=63, description="the camera's tenant; empty: default")]


@router.post("/films", **route(Film, status=201, openapi_extra=BODY))
async def send_film(
    request: Request, principal: Administrator, asked: Asked, camera: _Camera, tenant: _Tenant = ""
) -> Response:
    """Publish a film as if the camera had just filmed it. Existing watches are asked about it.

    The request body is the file. A film that would overlap the camera's newest footage is rejected (409).
    """
    parts = parts_of(request)
    labels = await run_in_threadpool(_checked, parts, principal, camera, tenant)
    if _one_at_a_time.locked():
        raise ProblemError(
            429, "another film is being sent now: try again in a minute", {"Retry-After": "60"}
        )

    def publish(path: str) -> Film:
        sent: list[RecordPlace] = []
        parts.writes.catch_up(AUDIT.name)  # because decode may not have read the camera's previous film yet
        with parts.database.reading() as connection:
            footage_until_ms = queries.footage_until(connection, camera)
        try:
            return films.publish(
                path,
                camera,
                labels,
                lambda data, more: sent.extend(parts.writes.publish(SEGMENTS.name, camera, data, more)),
                footage_until_ms,
            )
        finally:  # even if only part of the film could be read
            if sent:
                audit = entry(queries.FILM_SENT, camera, camera=camera, tenant=tenant)
                parts.writes.note(principal, asked, audit)

    async with _one_at_a_time:
        with tempfile.NamedTemporaryFile(suffix=".film") as file:
            try:
                await films.receive(patient(request.stream()), file)
            except ClientDisconnect:
                raise ProblemError(400, "the upload of the film broke off: send it again") from None
            film = await run_in_threadpool(publish, file.name)
            with parts.database.reading() as connection:
                asking = queries.asking(connection)
            film.watches = sum(covers(watch, camera, tenant_of(tenant)) for watch in asking)
            return answer(film, 201)


def _checked(parts: Parts, principal: Principal, camera: str, tenant: str) -> dict[str, str]:
    """Return the labels of a film's segments.

    Raises:
        ProblemError: The tenant or the camera's id is invalid; the caller may not see the camera; or the
            camera belongs to another tenant, is a Kubernetes resource or is already pulled by an agent.
    """
    try:
        labels = label_headers(Camera(tenant=check_tenant(tenant)))
    except WireError as error:
        raise ProblemError(400, f"tenant: {error}") from None
    if not principal.sees(camera, tenant):
        raise ProblemError(403, "camera, tenant: you may not see this camera; choose one of yours")
    check_name(parts, camera)
    check_owner(parts, principal, camera)
    with parts.database.reading() as connection:
        row = queries.document(connection, CAMERAS.name, camera)
        tenants = set(queries.tenants_of(connection, camera))
    if tenants - {tenant_of(tenant)}:
        raise ProblemError(409, f"camera {camera} belongs to another tenant: choose another id")
    if row is not None and from_json(row.body, Camera).url:
        raise ProblemError(409, f"an agent already pulls camera {camera}: choose another id")
    return labels
