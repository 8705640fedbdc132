"""Offers the API to agents as Model Context Protocol tools. Calls are checked like calls of the HTTP
routes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import httpx
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from lookout.services.gateway.guard import caller
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.problems import ProblemError, problem_response

if TYPE_CHECKING:
    from lookout.services.gateway.mcp_tools import Tools

PATH: Final = "/mcp"
#: headers by which the API identifies the caller
_OF_CALLER: Final = ("authorization", "cookie", "x-csrf-token", "host")


def install(app: FastAPI, parts: Parts) -> None:
    """Serve the tools at /mcp."""

    @cache
    def tools() -> Tools:
        # Imported at the first call, because these packages would take a quarter of the gateway's start-up
        # time, and few gateways have agents.
        from lookout.services.gateway.mcp_tools import Tools

        return Tools(parts)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request({**scope, "app": app}, receive)
        try:
            principal = await run_in_threadpool(caller, request)
        except ProblemError as error:
            answer = problem_response(request, error.status, str(error), error.headers)
            await answer(scope, receive, send)
            return
        headers = {name: value for name in _OF_CALLER if (value := request.headers.get(name)) is not None}
        address = (request.client.host, request.client.port) if request.client is not None else ("", 0)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=address)
        base = f"{request.url.scheme}://{request.url.netloc}"
        async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as api:
            await (await run_in_threadpool(tools)).answer(principal, api, (scope, receive, send))

    app.mount(PATH, guarded)
