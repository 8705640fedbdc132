"""Events as they happen."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from lookout.services.gateway.events import sees_event
from lookout.services.gateway.guard import Viewer, still_is
from lookout.services.gateway.messages import reference, route
from lookout.services.gateway.parts import parts_of
from lookout.v1.gateway_pb2 import Event

router = APIRouter(prefix="/v1/events", tags=["events"])
_STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "of Event"}}}


@router.get("", **route(None, media=_STREAM, openapi_extra={"x-event": reference(Event)}))
def events(
    request: Request,
    principal: Viewer,
    last_event_id: Annotated[str | None, Header(max_length=60)] = None,
    after: Annotated[str | None, Query(max_length=60, description="as the header last-event-id")] = None,
) -> Response:
    """Incidents, what people do with them, watches, jobs and dead letters, as they come.

    A follower that comes back with the id of its last event misses none.
    """
    feed = parts_of(request).feed
    position = feed.begin(last_event_id or after)
    return StreamingResponse(
        feed.follow(position, sees_event(principal), lambda: still_is(request, principal)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )
