"""Find: moments of the cameras that a caller may see, as recall verifies them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import grpc
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from lookout.errors import LookoutError
from lookout.runtime.net import Channels
from lookout.services.gateway.guard import Viewer, too_many
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import reference, route
from lookout.services.gateway.parameters import parse_ms
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.routes.events import EventStream
from lookout.services.gateway.writes import Asked, entry
from lookout.text import question_text
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import FindRequest, FindResponse
from lookout.wire import to_json

router = APIRouter(prefix="/v1/find", tags=["find"])
_LATER_S = 10.0
_STREAM = {
    "text/event-stream": {
        "schema": {"type": "string", "description": "events progress, hit, summary and problem"}
    }
}


@router.get("", **route(None, media=_STREAM, openapi_extra={"x-event": reference(FindResponse)}))
def find_moments(
    request: Request,
    principal: Viewer,
    asked: Asked,
    question: Annotated[str, Query(max_length=2000, description="one of yes or no")],
    camera: Annotated[str, Query(max_length=200, description="id or glob")] = "*",
    since: Annotated[str | None, Query(max_length=40)] = None,
    until: Annotated[str | None, Query(max_length=40)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="hits at most")] = 20,
    threshold: Annotated[float, Query(gt=0, le=1, description="least p(yes) of a hit")] = 0.5,
    anyway: Annotated[
        bool, Query(description="ask a question that the model was not trained for; hits say `untrained`")
    ] = False,
) -> Response:
    """Find moments in what cameras saw. Hits come as they are verified; leaving ends the search."""
    parts = parts_of(request)
    if parts.settings.recall is None:
        raise ProblemError(404, "this fleet has no recall: run it with memory, and set LOOKOUT_RECALL")
    words = question_text(question, lambda text: LookoutError(f"question: {text}"))
    since_ms, until_ms = parse_ms("since", since), parse_ms("until", until)
    search = FindRequest(
        question=words,
        cameras=_visible(parts, principal, camera),
        since_us=None if since_ms is None else since_ms * 1000,
        until_us=None if until_ms is None else until_ms * 1000,
        limit=limit,
        threshold=threshold,
        anyway=anyway,
        exact=not principal.unlimited,
        tenants=principal.tenants,
    )
    if not parts.followers.begin(principal.actor):
        raise too_many(_LATER_S, f"{parts.followers.limit} streams of events are open already: close one")
    parts.writes.note_soon(principal, asked, entry("find", words, camera=camera))
    channel = Channels(parts.settings).open(parts.settings.recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Find(search)

    def end() -> None:
        call.cancel()
        channel.close()
        parts.followers.end(principal.actor)

    return EventStream(_events(call), end)


def _visible(parts: Parts, principal: Principal, pattern: str) -> list[str]:
    """What recall searches: a pattern of a caller that sees every camera, else the cameras that it sees."""
    if principal.unlimited:
        return [pattern]
    with parts.database.reading() as connection:
        cameras = [row.id for row in queries.cameras_of(connection, principal, pattern)]
    if not cameras:
        raise not_found("camera", pattern)
    return cameras


def _events(call: Any) -> Iterator[bytes]:
    """A search as server-sent events."""
    hits = False
    try:
        for response in call:
            kind = response.WhichOneof("part")
            hits |= kind == "hit"
            yield b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(getattr(response, kind)))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            yield b"event: problem\ndata: %s\n\n" % _problem(error, hits)


def _problem(error: Any, hits: bool) -> bytes:
    shown = error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    detail = error.details() if shown else f"recall does not answer: {error.code().name}"
    if hits:
        detail += ". The hits so far hold; the rest was not searched: search again"
    return json.dumps({"detail": detail}).encode()
