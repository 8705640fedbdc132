"""Cameras: those that send something, and those that agents pull."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from lookout.rules import covers
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import not_found
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.gateway_pb2 import CameraPage, CameraView
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, CAMERAS, WATCHES, from_json, names_id, tenant_of

router = APIRouter(prefix="/v1/cameras", tags=["cameras"])
#: seconds without frames after which a camera counts as offline
OFFLINE_S: Final = 60.0
_STATES: Final = {
    "answered": CameraView.STATE_WATCHED,
    "idle": CameraView.STATE_IDLE,
    "gap": CameraView.STATE_GAP,
    "degraded": CameraView.STATE_DEGRADED,
    "skipped": CameraView.STATE_SKIPPED,
}


@router.get("", **route(CameraPage))
def list_cameras(
    request: Request,
    principal: Viewer,
    camera: Annotated[str | None, Query(max_length=200, description="id or glob")] = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    after: Annotated[str, Query(max_length=200, description="`next` of the page before")] = "",
) -> Response:
    """Cameras by id."""
    with parts_of(request).database.reading() as connection:
        views = camera_views(connection, principal, camera)
    page = [view for view in views if view.id > after]
    return answer(CameraPage(cameras=page[:limit], next=page[limit - 1].id if len(page) > limit else ""))


@router.get("/{camera}", **route(CameraView))
def get_camera(request: Request, principal: Viewer, camera: str) -> Response:
    """One camera."""
    with parts_of(request).database.reading() as connection:
        views = [view for view in camera_views(connection, principal, None) if view.id == camera]
    if not views:
        raise not_found("camera", camera)
    return answer(max(views, key=lambda view: view.seen.ToMilliseconds()))


def camera_views(connection: Connection, principal: Principal, pattern: str | None) -> list[CameraView]:
    """The cameras that a caller may see, by id."""
    watches = [from_json(row.body, Watch) for row in queries.documents(connection, WATCHES.name)]
    asking = [watch for watch in watches if not watch.disabled and watch.id != CAMERA_OFFLINE]
    incidents = queries.open_incidents(connection)
    now_ms = time.time() * 1000
    views: dict[tuple[str, str], CameraView] = {}
    for row in queries.cameras_of(connection, principal, pattern):
        view = CameraView(id=row.id, tenant=row.tenant, open_incidents=incidents.get(row.key, 0))
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
    return [views[name] for name in sorted(views)]
