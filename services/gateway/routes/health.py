"""The health check, which needs no sign-in."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

router = APIRouter()


@router.get("/healthz", response_class=PlainTextResponse, tags=["health"], openapi_extra={"security": []})
def healthz() -> Response:
    """Answer as long as the gateway runs. /readyz on the metrics port says what the gateway is waiting
    for.
    """
    return PlainTextResponse("ok\n")
