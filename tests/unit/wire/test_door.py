"""Whatever a record's bytes are, reading it gives a message or a WireError: for every topic."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings, strategies as st

from lookout.v1.watches_pb2 import Watch
from lookout.wire import WireError, all_topics, from_json, message_kind, read_record
from lookout.wire.ranges import check_ranges

TOPICS = [topic.name for topic in all_topics() if message_kind(topic.name) is not None]
JSON = {"verdicts.v1", "alerts.v1", "watches.v1", "cameras.v1"}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["2026-01-31T08:00:00Z", "0000-00-00T00:00:00Z", "answered", "NaN", "\ud800", "AAAA", "="]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@functools.cache  # a strategy takes longer to build than to draw from
def filled(kind: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the fields of a message and values of any kind in them."""

    def value_of(field: Any) -> st.SearchStrategy[Any]:
        if field.message_type is not None and depth < 3:
            inner = filled(field.message_type, depth + 1)
            return st.lists(inner, max_size=3) | inner | values
        return values

    return st.fixed_dictionaries({}, optional={field.name: value_of(field) for field in kind.fields})


def check(topic: str, value: bytes) -> None:
    """Read it; what is read can be used."""
    try:
        message = read_record(topic, value)
    except WireError:
        return
    assert isinstance(message, Message)
    check_ranges(message)
    for field, part in message.ListFields():
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
            part.ToMilliseconds()
            part.ToJsonString()


@pytest.mark.parametrize("topic", TOPICS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes(topic: str, data: st.DataObject) -> None:
    check(topic, data.draw(st.binary(max_size=200)))


@pytest.mark.slow
@pytest.mark.parametrize("topic", sorted(JSON))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_json_with_the_message_s_fields(topic: str, data: st.DataObject) -> None:
    kind = message_kind(topic)
    assert kind is not None
    check(topic, json.dumps(data.draw(filled(kind.DESCRIPTOR))).encode())


@pytest.mark.parametrize(
    "value",
    [
        b'{"id": "x", "version": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"question": "\\ud800"}',
        b'{"version": 1e400}',
        b'{"version": NaN}',
        b'{"active_from": "9999999-01-01T00:00:00Z"}',
        b'{"active_from": 5}',
        b'{"rule": 5}',
        b'{"cameras": {"a": 1}}',
        b"\xff\xfe",
        b"nul",
        b'"text"',
        b"",
    ],
)
def test_records_that_stopped_readers(value: bytes) -> None:
    with pytest.raises(WireError):
        from_json(value, Watch)


def test_a_topic_of_bytes_has_no_message() -> None:
    with pytest.raises(WireError, match="its records are bytes"):
        read_record("camera.segments.v1", b"")
