"""The first schema, written out so that later changes to `tables.py` do not affect it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None

#: SQLite assigns numbers only to columns of this type
_KEY = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Create every table."""
    _cameras_and_sums()
    _incidents()
    _documents()
    _rest()


def _cameras_and_sums() -> None:
    """Create the tables of cameras and of sums of their verdicts."""
    op.create_table(
        "cameras",
        Column("key", _KEY, autoincrement=True, nullable=False),
        Column("tenant", String(length=63), nullable=False),
        Column("id", String(length=200), nullable=False),
        Column("seen_ms", BigInteger(), nullable=False),
        Column("outcome", String(length=16), nullable=False),
        Column("decided_ms", BigInteger(), nullable=False),
        PrimaryKeyConstraint("key", name=op.f("pk_cameras")),
        UniqueConstraint("tenant", "id", name=op.f("uq_cameras_tenant_id")),
    )
    op.create_table(
        "series",
        Column("key", _KEY, autoincrement=True, nullable=False),
        Column("camera", _KEY, nullable=False),
        Column("watch", String(length=200), nullable=False),
        Column("newest_ms", BigInteger(), nullable=False),
        Column("last_ms", BigInteger(), nullable=False),
        ForeignKeyConstraint(["camera"], ["cameras.key"], name=op.f("fk_series_camera")),
        PrimaryKeyConstraint("key", name=op.f("pk_series")),
        UniqueConstraint("camera", "watch", name=op.f("uq_series_camera_watch")),
    )
    op.create_table(
        "buckets",
        Column("level", Integer(), nullable=False),
        Column("series", _KEY, nullable=False),
        Column("start_ms", BigInteger(), nullable=False),
        Column("verdicts", Integer(), nullable=False),
        Column("answers", Integer(), nullable=False),
        Column("p_sum", Double(), nullable=False),
        Column("p_max", Double(), nullable=False),
        Column("answered_ms", Integer(), nullable=False),
        Column("idle_ms", Integer(), nullable=False),
        Column("gap_ms", Integer(), nullable=False),
        Column("skipped_ms", Integer(), nullable=False),
        Column("degraded_ms", Integer(), nullable=False),
        Column("shared", Double(), nullable=False),
        Column("own", Double(), nullable=False),
        Column("partition", Integer(), nullable=False),
        Column("first", BigInteger(), nullable=False),
        Column("last", BigInteger(), nullable=False),
        Column("detail", LargeBinary(), nullable=True),
        ForeignKeyConstraint(["series"], ["series.key"], name=op.f("fk_buckets_series")),
        PrimaryKeyConstraint("level", "series", "start_ms", name=op.f("pk_buckets")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_buckets_level_start_ms", "buckets", ["level", "start_ms"], unique=False)


def _incidents() -> None:
    """Create the tables of incidents and what people do with them."""
    op.create_table(
        "questions",
        Column("key", _KEY, autoincrement=True, nullable=False),
        Column("text", Text(), nullable=False),
        PrimaryKeyConstraint("key", name=op.f("pk_questions")),
        UniqueConstraint("text", name=op.f("uq_questions_text")),
    )
    op.create_table(
        "incidents",
        Column("id", String(length=64), nullable=False),
        Column("camera", _KEY, nullable=False),
        Column("watch", String(length=200), nullable=False),
        Column("question", _KEY, nullable=False),
        Column("start_ms", BigInteger(), nullable=False),
        Column("end_ms", BigInteger(), nullable=False),
        Column("closed", Boolean(), nullable=False),
        Column("peak", Double(), nullable=False),
        Column("state", Integer(), nullable=False),
        Column("assignee", String(length=200), nullable=False),
        Column("right", Boolean(), nullable=True),
        Column("notes", Integer(), nullable=False),
        Column("alert", LargeBinary(), nullable=False),
        ForeignKeyConstraint(["camera"], ["cameras.key"], name=op.f("fk_incidents_camera")),
        ForeignKeyConstraint(["question"], ["questions.key"], name=op.f("fk_incidents_question")),
        PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
    )
    op.create_index("ix_incidents_assignee_start_ms", "incidents", ["assignee", "start_ms"], unique=False)
    op.create_index(
        "ix_incidents_camera_start_ms",
        "incidents",
        ["camera", "start_ms", "id", "state", "closed", "question", "watch"],
        unique=False,
    )
    op.create_index(
        "ix_incidents_start_ms",
        "incidents",
        ["start_ms", "id", "camera", "state", "closed", "question", "watch", "assignee"],
        unique=False,
    )
    op.create_index(
        "ix_incidents_watch_start_ms",
        "incidents",
        ["watch", "start_ms", "id", "camera", "state", "closed", "question"],
        unique=False,
    )
    op.create_table(
        "acts",
        Column("offset", BigInteger(), autoincrement=False, nullable=False),
        Column("id", String(length=64), nullable=False),
        Column("incident", String(length=64), nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("offset", name=op.f("pk_acts")),
        UniqueConstraint("id", name=op.f("uq_acts_id")),
    )
    op.create_index(op.f("ix_acts_incident"), "acts", ["incident"], unique=False)


def _documents() -> None:
    """Create the tables of the compacted topics and of requests."""
    op.create_table(
        "documents",
        Column("topic", String(length=249), nullable=False),
        Column("key", String(length=600), nullable=False),
        Column("tenant", String(length=63), nullable=False),
        Column("camera", String(length=200), nullable=False),
        Column("written_ms", BigInteger(), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        Column("fault", Text(), nullable=False),
        Column("owner", String(length=200), nullable=False),
        PrimaryKeyConstraint("topic", "key", name=op.f("pk_documents")),
    )
    op.create_table(
        "versions",
        Column("watch", String(length=200), nullable=False),
        Column("offset", BigInteger(), nullable=False),
        Column("version", BigInteger(), nullable=False),
        Column("active_ms", BigInteger(), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("watch", "offset", name=op.f("pk_versions")),
    )
    op.create_table(
        "requests",
        Column("key", String(length=128), nullable=False),
        Column("actor", String(length=200), nullable=False),
        Column("topic", String(length=249), nullable=False),
        Column("partition", Integer(), nullable=False),
        Column("offset", BigInteger(), nullable=False),
        Column("record", Text(), nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        PrimaryKeyConstraint("key", "actor", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_time_ms"), "requests", ["time_ms"], unique=False)
    op.create_table(
        "audit",
        Column("offset", BigInteger(), autoincrement=False, nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        Column("actor", String(length=200), nullable=False),
        Column("action", String(length=64), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("offset", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_action"), "audit", ["action"], unique=False)
    op.create_index(op.f("ix_audit_actor"), "audit", ["actor"], unique=False)
    op.create_index(op.f("ix_audit_time_ms"), "audit", ["time_ms"], unique=False)


def _rest() -> None:
    """Create the tables of events, dead letters, offsets and sessions."""
    op.create_table(
        "events",
        Column("number", BigInteger(), autoincrement=False, nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        Column("kind", String(length=16), nullable=False),
        Column("tenant", String(length=63), nullable=False),
        Column("camera", String(length=200), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("number", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_time_ms"), "events", ["time_ms"], unique=False)
    op.create_table(
        "letters",
        Column("topic", String(length=249), nullable=False),
        Column("partition", Integer(), nullable=False),
        Column("offset", BigInteger(), nullable=False),
        Column("time_ms", BigInteger(), nullable=False),
        Column("tenant", String(length=63), nullable=False),
        Column("key", String(length=600), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("topic", "partition", "offset", name=op.f("pk_letters")),
    )
    op.create_index(op.f("ix_letters_time_ms"), "letters", ["time_ms"], unique=False)
    op.create_table(
        "facts",
        Column("name", String(length=64), nullable=False),
        Column("value", Text(), nullable=False),
        PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )
    op.create_table(
        "offsets",
        Column("topic", String(length=249), nullable=False),
        Column("partition", Integer(), nullable=False),
        Column("next", BigInteger(), nullable=False),
        PrimaryKeyConstraint("topic", "partition", name=op.f("pk_offsets")),
    )
    op.create_table(
        "sessions",
        Column("digest", String(length=64), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        Column("csrf", String(length=64), nullable=False),
        Column("expires_ms", BigInteger(), nullable=False),
        PrimaryKeyConstraint("digest", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_ms"), "sessions", ["expires_ms"], unique=False)
