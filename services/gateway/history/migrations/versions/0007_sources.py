"""Adds the table of when agents were supposed to pull each camera."""

from __future__ import annotations

import json

import sqlalchemy
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, PrimaryKeyConstraint, String

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table; cameras that were already read get a row from their newest record."""
    sources = op.create_table(
        "sources",
        Column("camera", String(200), nullable=False),
        Column("offset", BigInteger(), nullable=False),
        Column("written_ms", BigInteger(), nullable=False),
        Column("tenant", String(63), nullable=False),
        Column("pulled", Boolean(), nullable=False),
        PrimaryKeyConstraint("camera", "offset", name=op.f("pk_sources")),
    )
    query = "SELECT key, written_ms, body FROM documents WHERE topic LIKE '%cameras.v1'"
    rows = []
    for key, written_ms, body in op.get_bind().execute(sqlalchemy.text(query)):
        camera = json.loads(bytes(body))
        tenant, pulled = camera.get("tenant") or "default", bool(camera.get("url"))
        rows.append(
            {"camera": key[:200], "offset": -1, "written_ms": written_ms, "tenant": tenant, "pulled": pulled}
        )
    op.bulk_insert(sources, rows)
