"""Uploads of recordings, to ask questions about them."""

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
#: OpenAPI description of a file as request body
BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Name = Annotated[str, Query(max_length=255, description="the file's name with its extension")]


@router.post("/uploads", **route(Upload, status=201, openapi_extra=BODY))
async def upload(request: Request, principal: Operator, asked: Asked, name: _Name) -> Response:
    """Store a recording for a week. Jobs refer to it by the URI in the answer.

    The request body is the file.
    """
    parts = parts_of(request)
    if principal.cameras:
        raise ProblemError(403, "jobs about recordings need a caller who may see every camera")
    if parts.uploads is None:
        raise ProblemError(409, "this gateway does not accept uploads: set LOOKOUT_UPLOAD_URL")
    try:
        recording = await parts.uploads.take(name, request.stream())
    except ClientDisconnect:
        raise ProblemError(400, "the upload broke off: upload the file again") from None
    tenant = min(principal.tenants, default="")
    audit = entry("recording.upload", recording.uri, tenant=tenant)
    await run_in_threadpool(parts.writes.note, principal, asked, audit)
    return answer(recording, 201)
