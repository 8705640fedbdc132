"""The Model Context Protocol tools. Imported at an agent's first call (`mcp.py`).

Tools that show footage or change something call the API as their caller would, so that roles, limits and the
audit log apply to them too.
"""

from __future__ import annotations

import contextvars
import time
from typing import Any, Final
from urllib.parse import quote

import httpx
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ResourceLink
from starlette.types import Receive, Scope, Send

from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import MINUTE_MS, TIMES
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.parameters import parse_ms
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.routes.cameras import camera_views
from lookout.wire import to_json

_DAY_MS: Final = 86_400_000
_caller: contextvars.ContextVar[Principal] = contextvars.ContextVar("caller")
_api: contextvars.ContextVar[httpx.AsyncClient] = contextvars.ContextVar("api")


class Tools:
    """The tool server.

    Args:
        parts: The gateway's parts.
    """

    def __init__(self, parts: Parts) -> None:
        self._server: MCPServer[Any] = MCPServer(
            "lookout",
            instructions="Incidents, pictures, clips and coverage of watched cameras. Times are RFC 3339.",
        )
        _add_reading(self._server, parts)
        _add_media(self._server, parts)
        _add_acting(self._server)

    async def answer(
        self, principal: Principal, api: httpx.AsyncClient, call: tuple[Scope, Receive, Send]
    ) -> None:
        """Answer one call. A new ASGI application is made for each call, so that its tasks end with the call.

        Args:
            principal: The caller.
            api: A client that calls the API as the caller.
            call: The request.
        """
        _caller.set(principal)
        _api.set(api)
        app = self._server.streamable_http_app(
            streamable_http_path="/",
            stateless_http=True,
            json_response=True,
            # DNS rebinding is not a threat, because the guard requires a token, which another site's page
            # does not have.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        async with self._server.session_manager.run():  # belongs to the app made above
            await app(*call)


def _add_reading(server: MCPServer[Any], parts: Parts) -> None:
    """Add the tools that read the history."""

    @server.tool()
    def cameras(camera: str = "*") -> str:
        """List cameras with their states (watched, idle, gap, offline ...). `camera` is an id or glob."""
        with parts.database.reading() as connection:
            views = camera_views(connection, _caller.get(), camera)
        return _lines(views)

    @server.tool()
    def incidents(
        camera: str = "*", words: str = "", since: str = "", until: str = "", limit: int = 50
    ) -> str:
        """List incidents, newest first: camera, question, peak p(yes), times and triage state."""
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
        """Sum up the seconds of each camera and watch by outcome; by default for the last day."""
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
        return "\n".join(lines) or "no verdicts in this time"


def _add_media(server: MCPServer[Any], parts: Parts) -> None:
    """Add the tools that show footage."""

    @server.tool()
    async def picture(incident: str = "", camera: str = "", time: str = "") -> Image:
        """Show an incident's picture, by the incident's id; or a camera's picture nearest to a time."""
        path = f"/v1/cameras/{quote(camera)}/frames/{quote(time, safe='')}.jpg"
        if incident:
            path = f"/v1/incidents/{quote(incident, safe='')}/picture.jpg"
        return Image(data=(await _asked("GET", path)).content, format="jpeg")

    @server.tool()
    async def clip(incident: str = "", camera: str = "", since: str = "", until: str = "") -> ResourceLink:
        """Link to an incident's clip, by the incident's id; or to a camera's clip of at most five minutes."""
        path, query = f"/v1/cameras/{quote(camera)}/clip", {"from": since, "to": until}
        if incident:
            path, query = f"/v1/incidents/{quote(incident, safe='')}/clip", {}
        facts = (await _asked("GET", f"{path}.json", params=query)).json()
        base = parts.settings.public_url or str(_api.get().base_url).rstrip("/")
        return ResourceLink(
            type="resource_link",
            uri=str(httpx.URL(f"{base}{path}.mp4", params=query)),
            name=f"{facts['camera']} {facts['spans'][0]['start']}",
            mime_type="video/mp4",
            size=int(facts["bytes"]),
        )


def _add_acting(server: MCPServer[Any]) -> None:
    """Add the tools that ask or change something."""

    @server.tool()
    async def ask(question: str, camera: str = "", since: str = "", until: str = "") -> str:
        """Ask a yes/no question about what one camera or all cameras saw. Returns a job; read it with
        `answer`.
        """
        watch = {"question": question, "cameras": [camera] if camera else [], "rule": {"threshold": 0.5}}
        span = {name: value for name, value in (("since", since), ("until", until)) if value}
        tenant = next(iter(_caller.get().tenants), "")
        body = {"tenant": tenant, "backtest": {"watch": watch, **span}}
        return (await _asked("POST", "/v1/backtests", json=body)).text

    @server.tool()
    async def find(
        question: str,
        camera: str = "*",
        since: str = "",
        until: str = "",
        *,
        limit: int = 10,
        anyway: bool = False,
    ) -> str:
        """Find moments at which the answer to a yes/no question was yes. Also says what was not searched.

        A question that the model was not trained for needs `anyway`, and its answers mean little.
        """
        query = {"question": question, "camera": camera, "limit": str(limit), "anyway": str(anyway).lower()}
        query |= {name: value for name, value in (("since", since), ("until", until)) if value}
        events = (await _asked("GET", "/v1/find", params=query)).text.split("\n\n")
        return "\n".join(event for event in events if not event.startswith("event: progress")).strip()

    @server.tool()
    async def report(camera: str = "*", since: str = "", until: str = "") -> str:
        """Report what happened in a time range (default: the last 8 hours): incidents, time without answers,
        unusual spans, counts per hour.
        """
        query = {"camera": camera, "since": since, "until": until}
        return (await _asked("GET", "/v1/report", params={k: v for k, v in query.items() if v})).text

    @server.tool()
    async def answer(job: str) -> str:
        """Show a job with its answers: incidents with their highest p(yes), and what was watched."""
        return (await _asked("GET", f"/v1/backtests/{quote(job, safe='')}")).text

    @server.tool()
    async def act(incident: str, kind: str, note: str = "") -> str:
        """Act on an incident: claim, acknowledge, resolve, false-positive, reopen, release or note."""
        path = f"/v1/incidents/{quote(incident, safe='')}/actions"
        return (await _asked("POST", path, json={"kind": kind, "note": note})).text


async def _asked(method: str, path: str, **more: Any) -> httpx.Response:
    """Call the API as the tool's caller; return the response.

    Raises:
        ToolError: The API answered with a problem; the error has its text.
    """
    answer = await _api.get().request(method, path, **more)
    if answer.is_error:
        raise ToolError(str(answer.json().get("detail", answer.reason_phrase)))
    return answer


def _lines(messages: Any) -> str:
    return "\n".join(to_json(message).decode() for message in messages) or "none"
