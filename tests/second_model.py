"""A fake second model: an OpenAI-compatible endpoint and a gateway's picture, over HTTP on 127.0.0.1."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PICTURE = b"\xff\xd8 no real picture"


@dataclass
class SecondModel:
    """The server. It says what `say` says, and never looks at a picture.

    Attributes:
        say: Called for each question with its text; gives status and words, or waits.
        asked: Bodies of the questions, in order.
        keys: What came as authorization.
    """

    say: Callable[[str], tuple[int, str]] = lambda question: (200, "Yes.")
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, PICTURE)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                model.asked.append(body)
                model.keys.add(self.headers.get("authorization", ""))
                content = body["messages"][0]["content"]
                status, words = model.say(content if isinstance(content, str) else content[-1]["text"])
                reply = {"choices": [{"message": {"content": words}}], "usage": {"total_tokens": 321}}
                with suppress(OSError):  # who asked may have been killed
                    self._answer(status, json.dumps(reply).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"
