"""Error responses as problem details (RFC 9457): a sentence that says what is wrong, where, and what to
do.
"""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy.exc
from confluent_kafka import KafkaException
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lookout.administration import WriteError
from lookout.errors import LookoutError, TransientError
from lookout.runtime.observe import logs
from lookout.text import clean
from lookout.v1.gateway_pb2 import Problem
from lookout.wire import to_json

MEDIA_TYPE: Final = "application/problem+json"
#: statuses of problems that any route may answer with
STATUSES: Final = (400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 422, 429, 500, 503)


class ProblemError(LookoutError):
    """An error response.

    Args:
        status: HTTP status.
        detail: What is wrong, where, and what to do.
        headers: Further headers of the response.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})


def not_found(what: str, identity: str) -> ProblemError:
    """Return the 404 error for an object that does not exist or that the caller may not see."""
    name = clean(identity, 80)
    return ProblemError(404, f"{what} {name} does not exist, or you may not see it: check its id")


def problem_response(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a problem as a response."""
    body = Problem(
        type="about:blank",
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=clean(detail, 600),
        instance=request.url.path[:300],
    )
    return Response(to_json(body), status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def documented() -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of these responses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": http.HTTPStatus(status).phrase, "content": content} for status in STATUSES
    }


def install(app: FastAPI) -> None:
    """Make an application turn every error into a problem."""

    @app.exception_handler(ProblemError)
    async def refused(request: Request, error: ProblemError) -> Response:
        return problem_response(request, error.status, str(error), error.headers)

    @app.exception_handler(LookoutError)
    async def wrong(request: Request, error: LookoutError) -> Response:
        return problem_response(request, 400, str(error))

    @app.exception_handler(WriteError)
    async def not_written(request: Request, error: WriteError) -> Response:
        # Kafka may have the record nevertheless; a retry with the same idempotency key does not write it
        # twice.
        return problem_response(request, 503, f"{error}: send the same request again", {"Retry-After": "2"})

    @app.exception_handler(TransientError)
    async def away(request: Request, error: TransientError) -> Response:
        return problem_response(request, 503, f"{error}: try again", {"Retry-After": "2"})

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        details = {
            404: f"there is no route {request.url.path[:100]}: see /openapi.json",
            405: f"this route does not support {request.method}: see /openapi.json",
        }
        return problem_response(
            request, error.status_code, details.get(error.status_code, str(error.detail)), error.headers
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()
        )
        return problem_response(request, 422, "; ".join(faults))

    @app.exception_handler(sqlalchemy.exc.OperationalError)
    async def database_away(request: Request, error: sqlalchemy.exc.OperationalError) -> Response:
        logs.get("gateway").warning("the database does not answer", error=str(error.orig))
        return problem_response(
            request, 503, "the history's database does not answer: try again", {"Retry-After": "2"}
        )

    @app.exception_handler(KafkaException)
    async def kafka_away(request: Request, error: KafkaException) -> Response:
        return problem_response(
            request, 503, f"Kafka does not answer ({error.args[0].str()}): try again", {"Retry-After": "2"}
        )

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        logs.get("gateway").error("a call failed", path=request.url.path, exc_info=error)
        return problem_response(request, 500, "the gateway failed: see its log")
