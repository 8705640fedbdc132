"""Agents: the history as tools of the Model Context Protocol, behind the same guard as every route."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from lookout.services.gateway.guard import caller
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import MINUTE_MS, TIMES
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, problem_response
from lookout.services.gateway.routes.cameras import camera_views
from lookout.services.gateway.times import parse_ms
from lookout.wire import to_json

PATH: Final = "/mcp"
_DAY_MS: Final = 86_400_000
_caller: contextvars.ContextVar[Principal] = contextvars.ContextVar("caller")


def make_server(parts: Parts) -> MCPServer[Any]:
    """The tools over the parts of a gateway; they read, and change nothing."""
    server: MCPServer[Any] = MCPServer(
        "lookout",
        instructions="Incidents, cameras and coverage of a fleet of watched cameras. Times are RFC 3339.",
    )

    @server.tool()
    def cameras(camera: str = "*") -> str:
        """Cameras with their state (watched, idle, gap, offline ...), by id or glob."""
        with parts.database.reading() as connection:
            views = camera_views(connection, _caller.get(), camera)
        return _lines(views)

    @server.tool()
    def incidents(
        camera: str = "*", words: str = "", since: str = "", until: str = "", limit: int = 50
    ) -> str:
        """Incidents, newest first: camera, question, peak p(yes), times, and what people did with them."""
        criteria = queries.IncidentFilter(
            camera=camera,
            words=words or None,
            since_ms=parse_ms("since", since or None),
            until_ms=parse_ms("until", until or None),
        )
        with parts.database.reading() as connection:
            rows, _ = queries.incidents(connection, _caller.get(), criteria, "", min(max(limit, 1), 200))
        return _lines([view_of_row(row, row.tenant) for row in rows])

    @server.tool()
    def coverage(camera: str = "*", since: str = "", until: str = "") -> str:
        """Seconds of each camera and watch by outcome; the last day by default."""
        end_ms = parse_ms("until", until or None) or int(time.time() * 1000)
        begin_ms = parse_ms("since", since or None)
        begin_ms = end_ms - _DAY_MS if begin_ms is None else begin_ms
        with parts.database.reading() as connection:
            series = queries.series_of(connection, _caller.get(), camera, None)
            sums = queries.sums(connection, series, begin_ms, end_ms, MINUTE_MS)
        lines = []
        for entry in series:
            buckets = sums.get(entry.key, {}).values()
            if not buckets:
                continue
            seconds = [sum(bucket.times[place] for bucket in buckets) / 1000 for place in range(len(TIMES))]
            named = ", ".join(
                f"{name.removesuffix('_ms')} {value:g} s"
                for name, value in zip(TIMES, seconds, strict=True)
                if value
            )
            lines.append(f"{entry.camera} / {entry.watch}: {named}")
        return "\n".join(lines) or "no verdict of this time"

    return server


def _lines(messages: Any) -> str:
    return "\n".join(to_json(message).decode() for message in messages) or "none"


def install(app: FastAPI, parts: Parts) -> None:
    """Serve the tools at /mcp."""
    server = make_server(parts)
    inner = server.streamable_http_app(
        streamable_http_path="/",
        stateless_http=True,
        json_response=True,
        # The guard asks for a token, which no page of another site has.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request({**scope, "app": app}, receive)
        try:
            principal = await _identified(request)
        except ProblemError as error:
            answer = problem_response(request, error.status, str(error), error.headers)
            await answer(scope, receive, send)
            return
        token = _caller.set(principal)
        try:
            await inner(scope, receive, send)
        finally:
            _caller.reset(token)

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    app.router.lifespan_context = running
    app.mount(PATH, guarded)


async def _identified(request: Request) -> Principal:
    return await run_in_threadpool(caller, request)
