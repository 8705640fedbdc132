"""Custom resources as the Kubernetes API returns them, and how fakes of it answer."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from lookout.services.controller.cluster import FINALIZER

CREATED = "2026-01-02T03:04:05Z"


class JsonHandler(BaseHTTPRequestHandler):
    """A request to a fake of the API server."""

    def body(self) -> Any:
        """What was sent."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, code: int, body: Any) -> None:
        """Answer with JSON."""
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


QUESTION = "Is anyone lying on the ground?"


def watch_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "fall", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"question": QUESTION, **spec}}


def notification_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "guards", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    webhook = {"url": "https://hooks.example.org/lookout", "secrets": ["guards-key"]}
    return {"metadata": metadata, "spec": spec or {"webhook": webhook}}


def camera_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "gate-3", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"url": "rtsp://10.1.2.3/live", **spec}}
