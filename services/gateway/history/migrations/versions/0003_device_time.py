"""Adds measured device time to the sums of verdicts."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; existing sums get 0."""
    op.add_column("buckets", Column("device_us", BigInteger(), nullable=False, server_default="0"))
