"""The event stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lookout.services.gateway.events import sees_event
from lookout.services.gateway.guard import Viewer, still_is, too_many
from lookout.services.gateway.messages import reference, route
from lookout.services.gateway.parts import parts_of
from lookout.v1.gateway_pb2 import Event

router = APIRouter(prefix="/v1/events", tags=["events"])
_LATER_S: Final = 10.0
_STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "of Event"}}}


@router.get("", **route(None, media=_STREAM, openapi_extra={"x-event": reference(Event)}))
def events(
    request: Request,
    principal: Viewer,
    last_event_id: Annotated[str | None, Header(max_length=60)] = None,
    after: Annotated[
        str | None, Query(max_length=60, description="the same as the header last-event-id")
    ] = None,
) -> Response:
    """Stream events as they happen: incidents, people's actions on them, watches, jobs and dead letters.

    A follower that reconnects with the id of its last event misses no event.
    """
    parts = parts_of(request)
    position = parts.feed.begin(last_event_id or after)
    if not parts.followers.begin(principal.actor):
        raise too_many(_LATER_S, f"{parts.followers.limit} event streams are already open: close one")
    return EventStream(
        parts.feed.follow(position, sees_event(principal), lambda: still_is(request, principal)),
        lambda: parts.followers.end(principal.actor),
    )


class EventStream(StreamingResponse):
    """A stream of events with a cleanup, which runs even if the caller leaves before the first event."""

    def __init__(self, events: AsyncIterator[bytes] | Iterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()
