"""The OpenAPI document of the gateway."""

from __future__ import annotations

import json
import re

from fastapi import FastAPI

from lookout.services.gateway import openapi
from lookout.services.gateway.app import ROUTES


def test_every_message_that_a_route_names_is_described() -> None:
    app = FastAPI()
    openapi.install(app)
    for module in ROUTES:
        app.include_router(module.router)
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(app.openapi())))
    assert "CameraMasks" in named
    assert sorted(named - openapi.components().keys()) == []
