"""CloudEvents in Kafka headers."""

from __future__ import annotations

from lookout.wire import (
    event_headers,
    event_type,
)


def test_cloud_event_headers() -> None:
    headers = event_headers("lookout.alert.v1", "alerts", "door", "id-1", "2026-01-01T00:00:00Z")
    assert event_type(headers) == "lookout.alert.v1"
    assert dict(headers)["ce_specversion"] == b"1.0"
