"""A real HTTP server on 127.0.0.1 that takes what is posted to it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class HttpTarget(ABC):
    """Runs while it is entered; `take` gets each request."""

    @abstractmethod
    def take(self, headers: dict[str, str], body: bytes) -> int:
        """The status of a request; 0 closes the connection without an answer."""

    @property
    def address(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.close_connection = True
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:  # its sender was killed on the way
                    return
                status = target.take(dict(self.headers), body)
                if status:
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
