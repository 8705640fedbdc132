"""Adds to the sums of verdicts the time in which a watch was not asked because its gate did not hold."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; existing sums get 0, since there were no gates before."""
    op.add_column("buckets", Column("gated_ms", Integer(), nullable=False, server_default="0"))
