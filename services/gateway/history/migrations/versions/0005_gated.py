"""Time in which a watch was not asked because its gate did not hold, in the sums of verdicts."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; before it there were no gates."""
    op.add_column("buckets", Column("gated_ms", Integer(), nullable=False, server_default="0"))
