"""Alembic's entry point. The gateway passes the connection."""

from __future__ import annotations

from alembic import context

from lookout.services.gateway.history.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
