"""The ASGI application."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

import lookout
from lookout.services.gateway import console_files, mcp, openapi, problems
from lookout.services.gateway.access.protect import Protection
from lookout.services.gateway.parts import Parts
from lookout.services.gateway.routes import (
    access,
    cameras,
    clips,
    erasures,
    events,
    films,
    find,
    health,
    history,
    incidents,
    jobs,
    labels,
    masks,
    media,
    notifications,
    oidc,
    operations,
    push,
    report,
    session,
    shared,
    start,
    uploads,
    watches,
)

# Ids may contain slashes, so modules with routes below an id (/v1/cameras/ID/...) come before `cameras`.
#: modules with routes below /v1
ROUTES: Final = (
    health,
    session,
    oidc,
    incidents,
    events,
    find,
    media,
    masks,
    shared,
    start,
    notifications,
    push,
    watches,
    cameras,
    history,
    report,
    labels,
    clips,
    jobs,
    uploads,
    films,
    erasures,
    access,
    operations,
)


def make_app(parts: Parts) -> FastAPI:
    """Build the application from a gateway's parts."""
    app = FastAPI(
        title="Lookout",
        version=lookout.__version__,
        docs_url=None,  # FastAPI's page would load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.parts = parts
    problems.install(app)
    openapi.install(app)
    for module in ROUTES:
        app.include_router(module.router)
    mcp.install(app, parts)
    console_files.install(app)  # installed last, because it serves every remaining path
    app.add_middleware(Protection, large=frozenset({uploads.PATH, films.PATH}))
    return app
