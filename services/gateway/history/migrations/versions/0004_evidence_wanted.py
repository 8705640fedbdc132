"""Adds the table of incidents whose evidence must be kept because their watch says so."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "wanted",
        Column("incident", String(64), nullable=False),
        Column("watch", String(200), nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        PrimaryKeyConstraint("incident", name=op.f("pk_wanted")),
    )
    op.create_index(op.f("ix_wanted_time_ms"), "wanted", ["time_ms"], unique=False)
