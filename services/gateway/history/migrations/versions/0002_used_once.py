"""Adds the table of one-time values that were used."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "used",
        Column("digest", String(64), nullable=False),
        Column("expires_ms", BigInteger(), nullable=False),
        PrimaryKeyConstraint("digest", name=op.f("pk_used")),
    )
    op.create_index(op.f("ix_used_expires_ms"), "used", ["expires_ms"], unique=False)
