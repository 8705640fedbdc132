"""Adds the table of reasons that agents gave for cameras that sent nothing."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "outages",
        Column("camera", String(200), nullable=False),
        Column("first_ms", BigInteger(), nullable=False),
        Column("last_ms", BigInteger(), nullable=False),
        Column("said", Text(), nullable=False),
        PrimaryKeyConstraint("camera", "first_ms", name=op.f("pk_outages")),
    )
