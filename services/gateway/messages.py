"""Converts request and response bodies: messages from `protos/`, in the same JSON as in topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from lookout.services.gateway.problems import ProblemError, documented
from lookout.wire import WireError, from_json, to_json

M = TypeVar("M", bound=Message)
JSON = "application/json"


def answer(message: Message, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a message as an HTTP response."""
    return Response(to_json(message), status, media_type=JSON, headers=dict(headers or {}))


def body_of(kind: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a FastAPI dependency that reads a message from the request body."""

    async def read(request: Request) -> M:
        if request.headers.get("content-type", JSON).partition(";")[0].strip().lower() != JSON:
            raise ProblemError(415, f"the body must be {JSON}: set the header content-type")
        try:
            return from_json(await request.body() or b"{}", kind, closed=True)
        except WireError as error:
            raise ProblemError(400, f"body: {error}") from None

    return read


def route(
    answers: type[Message] | None,
    *,
    takes: type[Message] | None = None,
    status: int = 200,
    media: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the arguments for a FastAPI route whose bodies are messages.

    Args:
        answers: The message in a successful response; None: the response has no body, or one of `media`.
        takes: The message in the request body; None: the request has none.
        status: HTTP status of success.
        media: If a successful response is not a message, its content by media type, as in OpenAPI.
        more: Further arguments for the route.
    """
    content: dict[str, Any] = dict(media or {})
    if answers is not None:
        content[JSON] = {"schema": reference(answers)}
    responses = {status: {"description": "success", **({"content": content} if content else {})}}
    extra: dict[str, Any] = dict(more.pop("openapi_extra", {}))
    if takes is not None:
        extra["requestBody"] = {"required": True, "content": {JSON: {"schema": reference(takes)}}}
    return {
        "response_model": None,
        "response_class": Response,
        "status_code": status,
        "responses": {**documented(), **responses, **more.pop("responses", {})},
        "openapi_extra": extra,
        **more,
    }


def reference(kind: type[Message]) -> dict[str, str]:
    """Return a reference to a message in the OpenAPI document."""
    return {"$ref": f"#/components/schemas/{kind.DESCRIPTOR.full_name.removeprefix('lookout.v1.')}"}
