"""Uploads of recordings to ask questions about."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from lookout.services.gateway.guard import Operator
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.gateway_pb2 import Upload

router = APIRouter(prefix="/v1", tags=["jobs"])
#: the path whose bodies may be as large as recordings
PATH: Final = "/v1/uploads"
#: a file as a request's body, in the OpenAPI document
BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Name = Annotated[str, Query(max_length=255, description="of the file, with its ending")]


@router.post("/uploads", **route(Upload, status=201, openapi_extra=BODY))
async def upload(request: Request, principal: Operator, asked: Asked, name: _Name) -> Response:
    """Store a recording for a week; jobs name it by the URI of the answer.

    The body is the file.
    """
    parts = parts_of(request)
    if principal.cameras:
        raise ProblemError(403, "jobs about recordings need a caller that may see every camera")
    if parts.uploads is None:
        raise ProblemError(409, "this gateway accepts no uploads: set LOOKOUT_UPLOAD_URL")
    try:
        recording = await parts.uploads.take(name, request.stream())
    except ClientDisconnect:
        raise ProblemError(400, "the upload ended early: upload it again") from None
    tenant = min(principal.tenants, default="")
    audit = entry("recording.upload", recording.uri, tenant=tenant)
    await run_in_threadpool(parts.writes.note, principal, asked, audit)
    return answer(recording, 201)
