"""A real HTTP server on this machine that serves ranges of files, and counts the bytes of bodies."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class RangeServer:
    """Files of a folder by their names, each with an ETag of its bytes.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.sent = 0
        outer = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                data = (folder / self.path.rpartition("/")[2]).read_bytes()
                tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
                whole = "range" not in self.headers or self.headers.get("if-range", tag) != tag
                first, last = 0, len(data) - 1
                if not whole:
                    begin, end = self.headers["range"].removeprefix("bytes=").split("-")
                    first, last = int(begin), min(int(end), last)
                self.send_response(200 if whole else 206)
                self.send_header("etag", tag)
                self.send_header("content-length", str(last + 1 - first))
                if not whole:
                    self.send_header("content-range", f"bytes {first}-{last}/{len(data)}")
                outer.sent += last + 1 - first
                self.end_headers()
                self.wfile.write(data[first : last + 1])

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True  # connections are kept open between ranges
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.address = f"http://films.example:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
