"""Makes the OpenAPI 3.1 document, with routes from FastAPI and message schemas from `protos/`."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_DESCRIPTION = """Incidents, watches, cameras and history of a fleet. Shapes are the messages of the topics;
`docs/gateway.md` explains the routes, `docs/wire.md` the JSON."""


@functools.cache
def components() -> dict[str, Any]:
    """Return the schemas of all messages, which `python -m protos.message_schemas` makes."""
    schemas: dict[str, Any] = json.loads((files(__package__) / "schemas.json").read_text())
    return schemas


def install(app: FastAPI) -> None:
    """Make an application serve /openapi.json with the message schemas."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            content = get_openapi(
                title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes
            )
            parts = content.setdefault("components", {})
            # Replaces FastAPI's description of its own validation errors, which are never sent.
            parts["schemas"] = components()
            parts["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "lookout-session"},
            }
            content["security"] = [{"token": []}, {"session": []}]
            app.openapi_schema = content
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
