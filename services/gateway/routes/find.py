"""Search for moments in the footage of cameras that the caller may see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

import grpc
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from lookout.errors import LookoutError
from lookout.rules.types import RuleError
from lookout.rules.zones import parse_points
from lookout.runtime.net import Channels
from lookout.services.gateway.guard import Viewer, too_many
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, reference, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.routes.events import EventStream
from lookout.services.gateway.writes import Asked, entry
from lookout.text import question_text
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import (
    FindRequest,
    FindResponse,
    PictureRegion,
    SimilarRequest,
    SimilarResponse,
)
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import to_json

router = APIRouter(prefix="/v1/find", tags=["find"])
_LATER_S = 10.0
_SIMILAR_S = 30.0
#: gRPC codes with which recall rejects requests, and the HTTP status for each
_TOLD = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
LikeCamera = Annotated[
    str | None,
    Query(max_length=200, description="rank by a picture from this camera (with `at` and `zone`)"),
]
LikeTime = Annotated[str | None, Query(max_length=40, description="time of that picture, RFC 3339")]
LikeZone = Annotated[
    str | None,
    Query(
        max_length=2000,
        description="corners of the part to compare, such as '0.1,0.2 0.4,0.2 0.4,0.9'; default: all of it",
    ),
]
_JPEG: Final = "image/jpeg"


async def _jpeg(request: Request) -> bytes:
    """Return the JPEG in a request body; empty for a GET."""
    if request.method != "POST":
        return b""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JPEG:
        raise ProblemError(415, f"the body must be a JPEG: set the header content-type to {_JPEG}")
    if not (body := await request.body()):
        raise ProblemError(400, "the body is empty: send a JPEG")
    return body


OwnPicture = Annotated[bytes, Depends(_jpeg)]
_BODY = {
    "requestBody": {"required": True, "content": {_JPEG: {"schema": {"type": "string", "format": "binary"}}}}
}
_STREAM = {
    "text/event-stream": {
        "schema": {"type": "string", "description": "the events progress, hit, summary and problem"}
    }
}


@router.get("", **route(None, media=_STREAM, openapi_extra={"x-event": reference(FindResponse)}))
@router.post("", **route(None, media=_STREAM, openapi_extra={"x-event": reference(FindResponse), **_BODY}))
def find_moments(
    request: Request,
    principal: Viewer,
    asked: Asked,
    question: Annotated[str, Query(max_length=2000, description="a yes/no question")],
    camera: Annotated[str, Query(max_length=200, description="id or glob")] = "*",
    since: Annotated[str | None, Query(max_length=40)] = None,
    until: Annotated[str | None, Query(max_length=40)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="maximum number of hits")] = 20,
    threshold: Annotated[float, Query(gt=0, le=1, description="lowest p(yes) of a hit")] = 0.5,
    anyway: Annotated[
        bool,
        Query(description="allow a question that the model was not trained for; hits then say `untrained`"),
    ] = False,
    like: LikeCamera = None,
    at: LikeTime = None,
    zone: LikeZone = None,
    *,
    picture: OwnPicture,
) -> Response:
    """Find moments in what cameras saw. Each hit is sent as soon as it is verified; if the caller leaves, the
    search ends.

    With POST, the request body is a JPEG of your own, and spans are ranked by their similarity to it.
    """
    parts = parts_of(request)
    recall = _recall(parts)
    words = question_text(question, lambda text: LookoutError(f"question: {text}"))
    since_ms, until_ms = _times(since, until)
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
        like=_region(parts, principal, like, at, zone, picture),
    )
    if not parts.followers.begin(principal.actor):
        raise too_many(_LATER_S, f"{parts.followers.limit} event streams are already open: close one")
    parts.writes.note_soon(principal, asked, entry("find", words, camera=camera))
    channel = Channels(parts.settings).open(recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Find(search)

    def end() -> None:
        call.cancel()
        channel.close()
        parts.followers.end(principal.actor)

    return EventStream(_events(call), end)


@router.get("/similar", **route(SimilarResponse))
@router.post("/similar", **route(SimilarResponse, openapi_extra=_BODY))
def find_similar(
    request: Request,
    principal: Viewer,
    asked: Asked,
    like: LikeCamera = None,
    at: LikeTime = None,
    zone: LikeZone = None,
    camera: CameraGlob = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="maximum number of spans")] = 20,
    *,
    picture: OwnPicture,
) -> Response:
    """Return the times at which cameras looked most like a part of a picture. They are not verified.

    With POST, the request body is a JPEG of your own.
    """
    parts = parts_of(request)
    recall = _recall(parts)
    since_ms, until_ms = _times(since, until)
    region = _region(parts, principal, like, at, zone, picture)
    if region is None:
        raise ProblemError(
            400, "like: missing; give a camera whose picture to start from, or POST a JPEG of your own"
        )
    with parts.database.reading() as connection:
        cameras = queries.wholly_seen(connection, principal, camera)
    if not cameras:
        raise not_found("camera", camera or "*")
    about = SimilarRequest(
        like=region,
        cameras=[camera or "*"] if principal.unlimited else cameras,
        since_us=None if since_ms is None else since_ms * 1000,
        until_us=None if until_ms is None else until_ms * 1000,
        limit=limit,
        exact=not principal.unlimited,
    )
    about_what = f"like a picture of {len(picture)} bytes" if picture else f"like {like} at {at}"
    parts.writes.note_soon(principal, asked, entry("find", about_what, camera=camera or "*"))
    channel = Channels(parts.settings).open(recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        return answer(stub.Similar(about, timeout=_SIMILAR_S))
    except grpc.RpcError as error:
        status = _TOLD.get(error.code())
        detail = error.details() if status else f"recall does not answer ({error.code().name})"
        raise ProblemError(status or 503, detail) from None
    finally:
        channel.close()


def _times(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Parse the bounds of a search to Unix milliseconds.

    Raises:
        ProblemError: A bound is not a time, or `since` is not before `until`.
    """
    since_ms, until_ms = parse_ms("since", since), parse_ms("until", until)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ProblemError(400, "since: must be before until")
    return since_ms, until_ms


def _recall(parts: Parts) -> str:
    if parts.settings.recall is None:
        raise ProblemError(404, "this fleet has no recall: run it with memory, and set LOOKOUT_RECALL")
    return parts.settings.recall


def _region(
    parts: Parts, principal: Principal, camera: str | None, at: str | None, zone: str | None, picture: bytes
) -> PictureRegion | None:
    """Return the part of a picture that a search starts from; None if the search starts from no picture. The
    caller must see the picture's camera in all its tenants.
    """
    try:
        points = [Point(x=x, y=y) for x, y in parse_points(zone)] if zone else []
    except RuleError as error:
        raise ProblemError(400, f"zone: {error}") from None
    part = Zone(points=points) if points else None
    if picture:
        if camera is not None or at is not None:
            raise ProblemError(400, "like, at: must not be given together with a picture of your own")
        return PictureRegion(picture=picture, zone=part)
    if camera is None:
        return None
    time_ms = parse_ms("at", at)
    if time_ms is None:
        raise ProblemError(400, "at: missing; give the time of the picture, such as 2026-01-30T21:14:08Z")
    with parts.database.reading() as connection:
        if camera not in queries.wholly_seen(connection, principal, None):
            raise not_found("camera", camera)
    return PictureRegion(camera=camera, time_us=time_ms * 1000, zone=part)


def _visible(parts: Parts, principal: Principal, pattern: str) -> list[str]:
    """Return the cameras that recall should search: the pattern if the caller sees every camera, otherwise
    the ids of the matching cameras that the caller sees.
    """
    if principal.unlimited:
        return [pattern]
    with parts.database.reading() as connection:
        cameras = [row.id for row in queries.cameras_of(connection, principal, pattern)]
    if not cameras:
        raise not_found("camera", pattern)
    return cameras


def _events(call: Any) -> Iterator[bytes]:
    """Yield a search's results as server-sent events."""
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
    detail = error.details() if error.code() in _TOLD else f"recall does not answer ({error.code().name})"
    if hits:
        detail += ". The hits so far are valid, but the rest was not searched: search again"
    return json.dumps({"detail": detail}).encode()
