"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI

import lookout
from lookout.services.gateway import openapi, problems
from lookout.services.gateway.access.protect import Protection
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.routes import cameras, events, health, history, incidents, session


def make_app(parts: Parts) -> FastAPI:
    """The application over the parts of a gateway."""
    app = FastAPI(
        title="Lookout",
        version=lookout.__version__,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.parts = parts
    problems.install(app)
    openapi.install(app)
    for module in (health, session, incidents, events, cameras, history):
        app.include_router(module.router)
    app.add_middleware(Protection)
    return app
