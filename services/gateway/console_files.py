"""The console's files: the web application in `console/`, as `make setup` builds it."""

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
_NOT_BUILT: Final = "The console is not built here: `make console` builds it. The API is at /openapi.json.\n"
#: names of these files hold a digest of their content
_ASSETS: Final = "/assets/"


def install(app: FastAPI, built: Path = BUILT) -> None:
    """Let an application serve the console at every path that no route of the API has.

    The files hold no data of a fleet: anyone who loads them still has to sign in.
    """
    if (built / "index.html").exists():
        app.router.routes.append(Mount("/", _Cached(StaticFiles(directory=built, html=True))))
    else:
        app.router.routes.append(Route("/", lambda _request: PlainTextResponse(_NOT_BUILT, 503)))


class _Cached:
    """Files with cache headers: browsers may keep a file for ever if its name contains a digest of its
    content, and must revalidate others.
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
