"""The first schema."""

from __future__ import annotations

from alembic import op

from lookout.services.gateway.history.tables import METADATA

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    METADATA.create_all(op.get_bind())
