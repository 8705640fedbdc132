"""Serves the console: the web application in `console/`, which `make console` builds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BUILT: Final = Path(__file__).with_name("console") / "dist"
_NOT_BUILT: Final = "The console is not built; build it with `make console`. The API is at /openapi.json.\n"
#: files below this path have a digest of their content in their names
_ASSETS: Final = "/assets/"


def install(app: FastAPI, built: Path = BUILT) -> None:
    """Let an application serve the console at every path that is not an API route.

    The files contain no data of the fleet, so they need no sign-in.
    """
    if (built / "index.html").exists():
        app.router.routes.append(Mount("/", _Cached(StaticFiles(directory=built, html=True))))
    else:
        app.router.routes.append(Route("/", lambda _request: PlainTextResponse(_NOT_BUILT, 503)))


class _Cached:
    """Serves files with cache headers. Browsers may keep a file for ever if its name contains a digest of its
    content; they must revalidate all other files.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_asset = scope["path"].startswith(_ASSETS)

        async def send_kept(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 304):
                cache = "public, max-age=31536000, immutable" if is_asset else "no-cache"
                MutableHeaders(scope=message)["Cache-Control"] = cache
            await send(message)

        await self._app(scope, receive, send_kept)
