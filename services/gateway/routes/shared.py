"""Incidents' pictures and clips for anybody with a signed link, until the link expires."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from lookout.runtime.net.links import is_signed
from lookout.services.gateway.guard import address_of, too_many
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.routes import media
from lookout.services.gateway.writes import Asked
from lookout.v1.access_pb2 import Role

router = APIRouter(prefix="/v1/shared", tags=["media"])
#: the actor in the audit log: a link, with the caller's address
_ACTOR: Final = "shared-link"
_Incident = Annotated[str, Path(max_length=64)]


def holder(
    request: Request,
    until: Annotated[int, Query(ge=0, description="Unix seconds at which the link expires")] = 0,
    signature: Annotated[str, Query(max_length=100)] = "",
) -> Principal:
    """Return the caller that a signed link stands for, who may only read the link's own path.

    Raises:
        ProblemError: The link was not signed by this installation or has expired, or there were too many
            calls.
    """
    parts = parts_of(request)
    key = parts.link_key
    if key is None or not is_signed(key, request.url.path, until, signature):
        raise ProblemError(401, "this link has expired or is from another installation: sign in instead")
    wait_s = parts.rate.wait_s(f"{_ACTOR} {address_of(request)}")
    if wait_s:
        raise too_many(
            wait_s,
            f"this link was used for more than {parts.settings.calls_per_minute} calls "
            f"in a minute, which is the limit",
        )
    return Principal(actor=_ACTOR, role=Role.ROLE_VIEWER)


Holder = Annotated[Principal, Depends(holder)]


@router.get("/incidents/{identity}/picture.jpg", **media.PICTURES)
def shared_picture(request: Request, principal: Holder, asked: Asked, identity: _Incident) -> Response:
    """Return an incident's picture, through a link from a notification."""
    return media.incident_picture(request, principal, asked, identity)


@router.get("/incidents/{identity}/frames/{time}.jpg", **media.PICTURES)
def shared_frame(
    request: Request,
    principal: Holder,
    asked: Asked,
    identity: _Incident,
    time: Annotated[str, Path(max_length=40, description="RFC 3339")],
) -> Response:
    """Return an incident's picture nearest to a time, through a link that a service signed."""
    return media.incident_frame(request, principal, asked, identity, time)


@router.get("/incidents/{identity}/clip.mp4", **media.CLIPS)
def shared_clip(request: Request, principal: Holder, asked: Asked, identity: _Incident) -> Response:
    """Return an incident's clip, through a link from a notification."""
    return media.incident_clip(request, principal, asked, identity)
