"""Adds who wrote each version of a watch, and when."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, String

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; for versions that were already read, the author is unknown."""
    op.add_column("versions", Column("actor", String(200), nullable=False, server_default=""))
    op.add_column("versions", Column("written_ms", BigInteger, nullable=False, server_default="0"))
