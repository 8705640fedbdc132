"""Middleware that adds security headers to every response and limits request bodies."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lookout.services.gateway.problems import problem_response

#: maximum bytes of a request body; uploads of recordings and films have separate limits
BODY_BYTES: Final = 1 << 20
#: time limit for receiving the whole body, in seconds
BODY_S: Final = 30.0
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class _TooLargeError(Exception):
    """A request body exceeds its size limit."""


class _TooSlowError(Exception):
    """A request body is not complete within its time limit."""


class Protection:
    """The middleware.

    Args:
        app: The application.
        large: Paths whose request bodies have separate limits.
    """

    def __init__(self, app: ASGIApp, large: frozenset[str] = frozenset()) -> None:
        self._app, self._large = app, large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limited = scope["path"] not in self._large
        received, begun, is_complete = 0, False, False
        deadline = asyncio.get_running_loop().time() + BODY_S

        async def receive_some() -> Message:
            nonlocal received, is_complete
            if is_complete or not limited:  # after the body, `receive` waits until the client disconnects
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise _TooSlowError from None
            is_complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if limited and received > BODY_BYTES:
                raise _TooLargeError
            return message

        async def send_protected(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            length = Headers(scope=scope).get("content-length", "0")
            if limited and length.isdigit() and int(length[:18]) > BODY_BYTES:
                raise _TooLargeError
            await self._app(scope, receive_some, send_protected)
        except _TooLargeError:
            if not begun:
                detail = f"the body has more than {BODY_BYTES} bytes, which is the limit: send less"
                answer = problem_response(Request(scope), 413, detail)
                await answer(scope, receive, send_protected)
        except _TooSlowError:
            if not begun:
                detail = f"the body did not arrive within {BODY_S:g} s: send it faster"
                answer = problem_response(Request(scope), 408, detail, {"Connection": "close"})
                await answer(scope, receive, send_protected)
