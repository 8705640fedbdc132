"""Times for messages."""

from datetime import UTC, datetime, timedelta


def at(unix_ms: int) -> datetime:
    """A moment, as `google.protobuf.Timestamp` fields take it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)
