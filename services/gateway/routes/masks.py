"""Cameras' privacy masks."""

from __future__ import annotations

import threading
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from lookout.administration.masks import next_masks, uncovers
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.services.gateway.guard import Operator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.access_pb2 import Role
from lookout.v1.masks_pb2 import CameraMasks, MaskVersion
from lookout.wire import CAMERAS, MASKS, from_json, tenant_of, to_json

router = APIRouter(prefix="/v1/cameras", tags=["masks"])
_Camera = Annotated[str, Path(max_length=200)]
#: one change at a time, because two concurrent requests would write the same version number
_TURN: Final = threading.Lock()


@router.get("/{camera:path}/masks", **route(CameraMasks))
def get_masks(request: Request, principal: Viewer, camera: _Camera) -> Response:
    """Return the versions of a camera's privacy mask, the last of which is in force; empty if the camera
    never had a mask.
    """
    parts = parts_of(request)
    _check_seen(parts, principal, camera)
    return answer(_masks(parts, camera))


@router.put("/{camera:path}/masks", **route(CameraMasks, takes=MaskVersion))
def put_masks(
    request: Request,
    principal: Operator,
    asked: Asked,
    camera: _Camera,
    wanted: Annotated[MaskVersion, Depends(body_of(MaskVersion))],
) -> Response:
    """Hide polygons in a camera's pictures from now on, in older footage too.

    Send all polygons, and as `version` the last version that you have seen; if there is a newer version, the
    answer is 409. A change that may show what is hidden now needs an administrator, and applies only to what
    is filmed later.
    """
    parts = parts_of(request)
    tenant = _check_seen(parts, principal, camera)
    with _TURN, parts.writes.once(principal, asked, MASKS.name) as written:
        if written is None:
            parts.writes.catch_up(MASKS.name)
            before = _masks(parts, camera)
            newest = before.versions[-1].version if before.versions else 0
            if wanted.version != newest:
                raise ProblemError(
                    409,
                    f"version: the masks of camera {camera} are now at version {newest}, not "
                    f"{wanted.version}: read them again, then repeat your change",
                )
            after = next_masks(camera, before, wanted.hide, wanted.keep, principal.actor)
            MaskSigner.of(parts.settings).sign(after)
            lifts = uncovers(before, after)
            if lifts:
                principal.check_role(Role.ROLE_ADMINISTRATOR)
            audit = entry("mask.lift" if lifts else "mask.write", camera, camera=camera, tenant=tenant)
            parts.writes.write(principal, asked, MASKS.name, {camera: to_json(after)}, audit)
    return answer(_masks(parts, camera))


def _masks(parts: Parts, camera: str) -> CameraMasks:
    with parts.database.reading() as connection:
        row = queries.document(connection, MASKS.name, camera)
    return CameraMasks(camera=camera) if row is None else from_json(row.body, CameraMasks)


def _check_seen(parts: Parts, principal: Principal, camera: str) -> str:
    """Check that the caller may see a camera; return its tenant, empty if the camera is unknown.

    Raises:
        ProblemError: The caller may not see the camera.
    """
    with parts.database.reading() as connection:
        tenants = list(queries.tenants_of(connection, camera))
        row = queries.document(connection, CAMERAS.name, camera)
    if row is not None:
        tenants.append(tenant_of(row.tenant))
    if not tenants and principal.unlimited:
        return ""
    # A mask applies to the camera id in every tenant, so the caller must see all of them.
    if not tenants or not all(principal.sees(camera, tenant) for tenant in tenants):
        raise not_found("camera", camera)
    return tenants[0]
