"""Cameras that send something or that agents pull."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from lookout.administration.cameras import check_camera
from lookout.rules import covers
from lookout.services.gateway.guard import Administrator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parameters import CameraGlob
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.pulls import pulled
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.gateway_pb2 import CameraPage, CameraView
from lookout.wire import (
    CAMERAS,
    from_json,
    headers,
    name_fault,
    names_id,
    tenant_of,
    to_json,
)

router = APIRouter(prefix="/v1/cameras", tags=["cameras"])
#: seconds without frames after which a camera counts as offline
OFFLINE_S: Final = 60.0
_STATES: Final = {
    "answered": CameraView.STATE_WATCHED,
    "idle": CameraView.STATE_IDLE,
    "gap": CameraView.STATE_GAP,
    "degraded": CameraView.STATE_DEGRADED,
    "skipped": CameraView.STATE_SKIPPED,
    "gated": CameraView.STATE_WATCHED,
}


@router.get("", **route(CameraPage))
def list_cameras(
    request: Request,
    principal: Viewer,
    camera: CameraGlob = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    after: Annotated[str, Query(max_length=200, description="`next` from the previous page")] = "",
) -> Response:
    """List cameras by id."""
    with parts_of(request).database.reading() as connection:
        views = camera_views(connection, principal, camera)
    page = [view for view in views if view.id > after]
    offline = [view for view in page[:limit] if view.source.url and view.state == CameraView.STATE_OFFLINE]
    if offline:
        reports = pulled(parts_of(request).settings, [view.id for view in offline])
        for view, (state, error) in zip(offline, reports, strict=True):
            view.pull, view.pull_error = state, error
    return answer(CameraPage(cameras=page[:limit], next=page[limit - 1].id if len(page) > limit else ""))


@router.get("/{camera:path}", **route(CameraView))
def get_camera(request: Request, principal: Viewer, camera: Annotated[str, Path(max_length=200)]) -> Response:
    """Return a camera."""
    parts = parts_of(request)
    view = _camera(parts, principal, camera)
    if view.source.url:
        ((view.pull, view.pull_error),) = pulled(parts.settings, [camera])
    return answer(view)


@router.put("/{camera:path}", **route(CameraView, takes=Camera))
def put_camera(
    request: Request,
    principal: Administrator,
    asked: Asked,
    camera: Annotated[str, Path(max_length=200)],
    wanted: Annotated[Camera, Depends(body_of(Camera))],
) -> Response:
    """Have agents pull a camera, or change how. Its password is in the secret that `credentials` names."""
    parts = parts_of(request)
    wanted.id = camera
    check_camera(wanted)
    if not principal.sees(camera, wanted.tenant):
        raise ProblemError(403, "id, tenant: you may not see this camera; choose one of yours")
    check_owner(parts, principal, camera)
    check_name(parts, camera)
    with parts.writes.once(principal, asked, CAMERAS.name) as written:
        if written is None:
            audit = entry("camera.write", camera, camera=camera, tenant=wanted.tenant)
            parts.writes.write(principal, asked, CAMERAS.name, {camera: to_json(wanted)}, audit)
    return answer(_camera(parts, principal, camera))


@router.delete("/{camera:path}", **route(None, status=204))
def remove_camera(
    request: Request, principal: Administrator, asked: Asked, camera: Annotated[str, Path(max_length=200)]
) -> Response:
    """Stop agents from pulling a camera. Its footage stays (`/v1/erasures` removes it)."""
    parts = parts_of(request)
    check_owner(parts, principal, camera)
    with parts.writes.once(principal, asked, CAMERAS.name) as written:
        if written is None:
            if not _camera(parts, principal, camera).HasField("source"):
                raise ProblemError(
                    409,
                    f"camera {camera} publishes by itself: no agent pulls it, so it cannot be removed here",
                )
            audit = entry("camera.remove", camera, camera=camera)
            parts.writes.write(principal, asked, CAMERAS.name, {camera: None}, audit)
    return Response(status_code=204)


def check_name(parts: Parts, camera: str) -> None:
    """Raise ProblemError if the id of a new camera is invalid."""
    if (fault := name_fault(camera)) and not _exists(parts, camera):
        raise ProblemError(400, f"id: {fault}")


def check_owner(parts: Parts, principal: Principal, camera: str) -> None:
    """Raise ProblemError if the caller may not see a camera, or if the camera is managed as a Kubernetes
    resource.
    """
    with parts.database.reading() as connection:
        row = queries.document(connection, CAMERAS.name, camera)
    if row is None:
        return
    if not principal.sees(camera, row.tenant):
        raise not_found("camera", camera)
    if row.owner == headers.KUBERNETES:
        raise ProblemError(409, f"camera {camera} is a Kubernetes resource: change it with kubectl")


def _exists(parts: Parts, camera: str) -> bool:
    """Return whether a camera with this id has sent something, or is to be pulled by agents."""
    with parts.database.reading() as connection:
        known = queries.document(connection, CAMERAS.name, camera)
        return known is not None or bool(queries.tenants_of(connection, camera))


def _camera(parts: Parts, principal: Principal, camera: str) -> CameraView:
    with parts.database.reading() as connection:
        views = [view for view in camera_views(connection, principal, None) if view.id == camera]
    if not views:
        raise not_found("camera", camera)
    return max(views, key=lambda view: view.seen.ToMilliseconds())


def camera_views(connection: Connection, principal: Principal, pattern: str | None) -> list[CameraView]:
    """Return the cameras that a caller may see, by id."""
    asking = queries.asking(connection)
    incidents, faults = queries.open_incidents(connection), queries.camera_faults(connection)
    now_ms = time.time() * 1000
    views: dict[tuple[str, str], CameraView] = {}
    for row in queries.cameras_of(connection, principal, pattern):
        view = CameraView(id=row.id, tenant=row.tenant, open_incidents=incidents.get(row.key, 0))
        view.fault = faults.get(row.key, "")
        view.seen.FromMilliseconds(row.seen_ms)
        view.watches = sum(covers(watch, row.id, row.tenant) for watch in asking)
        if now_ms - row.seen_ms > OFFLINE_S * 1000:
            view.state = CameraView.STATE_OFFLINE
        elif not view.watches:
            view.state = CameraView.STATE_UNWATCHED
        else:
            view.state = _STATES.get(row.outcome, CameraView.STATE_GAP)
        views[row.id, row.tenant] = view
    for document in queries.documents(connection, CAMERAS.name):
        source = from_json(document.body, Camera)
        name, tenant = source.id, tenant_of(source.tenant)
        if (pattern is not None and not names_id(pattern, name)) or not principal.sees(name, tenant):
            continue
        view = views.setdefault(
            (name, tenant), CameraView(id=name, tenant=tenant, state=CameraView.STATE_OFFLINE)
        )
        view.source.CopyFrom(source)
        view.read_only = document.owner == headers.KUBERNETES
    return [views[name] for name in sorted(views)]
