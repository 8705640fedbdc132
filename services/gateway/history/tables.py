"""The history's tables (SQLAlchemy Core). Times are Unix milliseconds; messages are stored as JSON."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite assigns numbers only to columns of this type
_KEY = BigInteger().with_variant(Integer, "sqlite")

FACTS = Table(
    "facts",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Single values, such as the database's generation and the newest event's number."""

OFFSETS = Table(
    "offsets",
    METADATA,
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next", BigInteger, nullable=False),
)
"""The next offset of each partition, changed in the transaction that stores the records' rows."""

CAMERAS = Table(
    "cameras",
    METADATA,
    Column("key", _KEY, primary_key=True, autoincrement=True),
    Column("tenant", String(63), nullable=False),
    Column("id", String(200), nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("decided_ms", BigInteger, nullable=False),
    UniqueConstraint("tenant", "id"),
)
"""Cameras that sent something, by tenant. A camera that changes its tenant has one row per tenant.

`outcome` is the newest window's outcome, and `decided_ms` the window's end, by a clock that may differ from
that of `seen_ms`.
"""

SERIES = Table(
    "series",
    METADATA,
    Column("key", _KEY, primary_key=True, autoincrement=True),
    Column("camera", ForeignKey("cameras.key"), nullable=False),
    Column("watch", String(200), nullable=False),
    Column("newest_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
    UniqueConstraint("camera", "watch"),
)
"""A camera and a watch. `newest_ms`: until when their time is covered; `last_ms`: end of the newest
verdict.
"""

BUCKETS = Table(
    "buckets",
    METADATA,
    Column("level", Integer, primary_key=True),
    Column("series", ForeignKey("series.key"), primary_key=True),
    Column("start_ms", BigInteger, primary_key=True),
    Column("verdicts", Integer, nullable=False),
    Column("answers", Integer, nullable=False),
    Column("p_sum", Double, nullable=False),
    Column("p_max", Double, nullable=False),
    Column("answered_ms", Integer, nullable=False),
    Column("idle_ms", Integer, nullable=False),
    Column("gap_ms", Integer, nullable=False),
    Column("skipped_ms", Integer, nullable=False),
    Column("degraded_ms", Integer, nullable=False),
    Column("shared", Double, nullable=False),
    Column("own", Double, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("detail", LargeBinary),
    Column("device_us", BigInteger, nullable=False, server_default="0"),
    Column("gated_ms", Integer, nullable=False, server_default="0"),
    Index("ix_buckets_level_start_ms", "level", "start_ms"),
    sqlite_with_rowid=False,
)
"""Sums of verdicts per minute, hour and day. A minute's `detail` has each of its verdicts
(`buckets.Detail`).

`first` and `last` are the first and last offsets of the bucket's verdicts in a partition of verdicts.v1.
"""

QUESTIONS = Table(
    "questions",
    METADATA,
    Column("key", _KEY, primary_key=True, autoincrement=True),
    Column("text", Text, nullable=False, unique=True),
)

INCIDENTS = Table(
    "incidents",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("camera", ForeignKey("cameras.key"), nullable=False),
    Column("watch", String(200), nullable=False),
    Column("question", ForeignKey("questions.key"), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("peak", Double, nullable=False),
    Column("state", Integer, nullable=False),
    Column("assignee", String(200), nullable=False),
    Column("right", Boolean),  # a person's label: whether the answer is yes; NULL: no label
    Column("notes", Integer, nullable=False),
    Column("alert", LargeBinary, nullable=False),
    # These indexes alone give sorted lists, without reading rows with their alerts.
    Index(
        "ix_incidents_start_ms",
        "start_ms",
        "id",
        "camera",
        "state",
        "closed",
        "question",
        "watch",
        "assignee",
    ),
    Index("ix_incidents_camera_start_ms", "camera", "start_ms", "id", "state", "closed", "question", "watch"),
    Index("ix_incidents_watch_start_ms", "watch", "start_ms", "id", "camera", "state", "closed", "question"),
    Index("ix_incidents_assignee_start_ms", "assignee", "start_ms"),
)
"""Incidents, each with its newest alert."""

ACTS = Table(
    "acts",
    METADATA,
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False, unique=True),
    Column("incident", String(64), nullable=False, index=True),
    Column("time_ms", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""People's actions on incidents, from incident.actions.v1, which has one partition."""

DOCUMENTS = Table(
    "documents",
    METADATA,
    Column("topic", String(249), primary_key=True),
    Column("key", String(600), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("camera", String(200), nullable=False),
    Column("written_ms", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("fault", Text, nullable=False),
    Column("owner", String(200), nullable=False),
)
"""The newest usable record of each key of the compacted topics.

`fault`: why a newer record cannot be used; `owner`: who wrote the record.
"""

VERSIONS = Table(
    "versions",
    METADATA,
    Column("watch", String(200), primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("active_ms", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("actor", String(200), nullable=False, server_default=""),
    Column("written_ms", BigInteger, nullable=False, server_default="0"),
)
"""Records of watches.v1, as far as the topic still had them when it was read. `version` -1: a removal."""

SOURCES = Table(
    "sources",
    METADATA,
    Column("camera", String(200), primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("written_ms", BigInteger, nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("pulled", Boolean, nullable=False),
)
"""Records of cameras.v1, as far as the topic still had them: whether agents pull a camera from then on."""

OUTAGES = Table(
    "outages",
    METADATA,
    Column("camera", String(200), primary_key=True),
    Column("first_ms", BigInteger, primary_key=True),
    Column("last_ms", BigInteger, nullable=False),
    Column("said", Text, nullable=False),
)
"""Why agents got nothing from cameras, in the agents' words, and the time for which they said so.

Kafka has no record of this, so a rebuilt history does not know it.
"""

AUDIT = Table(
    "audit",
    METADATA,
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("time_ms", BigInteger, nullable=False, index=True),
    Column("actor", String(200), nullable=False, index=True),
    Column("action", String(64), nullable=False, index=True),
    Column("body", LargeBinary, nullable=False),
)

REQUESTS = Table(
    "requests",
    METADATA,
    Column("key", String(128), primary_key=True),
    Column("actor", String(200), primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("record", Text, nullable=False),
    Column("time_ms", BigInteger, nullable=False, index=True),
)
"""The first record that each request wrote. If the same request is repeated, it writes nothing."""

EVENTS = Table(
    "events",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("time_ms", BigInteger, nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("camera", String(200), nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The events of /v1/events, numbered without gaps."""

LETTERS = Table(
    "letters",
    METADATA,
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("time_ms", BigInteger, nullable=False, index=True),
    Column("tenant", String(63), nullable=False),
    Column("key", String(600), nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""Dead letters, without their bytes."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("expires_ms", BigInteger, nullable=False, index=True),
)
"""People's sessions; of the cookie's value, only the digest is stored."""

USED = Table(
    "used",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("expires_ms", BigInteger, nullable=False, index=True),
)
"""Digests of used one-time values, such as sign-in links, so that no replica accepts one again."""

WANTED = Table(
    "wanted",
    METADATA,
    Column("incident", String(64), primary_key=True),
    Column("watch", String(200), nullable=False),
    Column("time_ms", BigInteger, nullable=False, index=True),
)
"""Closed incidents whose evidence must be kept because their watch says so."""
