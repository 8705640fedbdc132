"""The wire: JSON both ways, stable ids, one table of topics."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookout.v1 import verdicts_pb2, watches_pb2
from lookout.wire import (
    INPUT,
    OUTPUT,
    WATCHES,
    Stage,
    WireError,
    all_topics,
    event_headers,
    event_type,
    from_bytes,
    from_json,
    stable_id,
    to_json,
)


def test_json_keeps_proto_names_and_ignores_the_unknown() -> None:
    watch = watches_pb2.Watch(id="fall", question="Is anyone lying on the ground?", active_from_ms=5)
    data = json.loads(to_json(watch))
    assert data["active_from_ms"] == "5"
    data["of_a_later_version"] = {"x": 1}
    assert from_json(json.dumps(data).encode(), watches_pb2.Watch) == watch


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"version": "x"}', b"\xff\xfe"])
def test_bad_json_gets_one_clear_error(bad: bytes) -> None:
    with pytest.raises(WireError, match=r"lookout\.v1\.Watch"):
        from_json(bad, watches_pb2.Watch)


def test_bad_bytes_get_one_clear_error() -> None:
    with pytest.raises(WireError, match=r"lookout\.v1\.Verdict"):
        from_bytes(b"\x0a\xff\xff\xff\xff\x0f", verdicts_pb2.Verdict)


def test_cloud_event_headers() -> None:
    headers = event_headers("lookout.alert.v1", "alerts", "door", "id-1", "2026-01-01T00:00:00Z")
    assert event_type(headers) == "lookout.alert.v1"
    assert dict(headers)["ce_specversion"] == b"1.0"


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_ids_differ_where_parts_differ(left: list[str], right: list[str]) -> None:
    assert (stable_id(*left) == stable_id(*right)) == (left == right)


def test_the_topic_table_is_one_chain() -> None:
    names = [topic.name for topic in all_topics()]
    assert len(names) == len(set(names))
    order = list(Stage)
    for before, after in itertools.pairwise(order):
        assert OUTPUT[before] is INPUT[after]
    assert WATCHES.config()["cleanup.policy"] == "compact"
    assert all(topic.config()["max.message.bytes"] for topic in all_topics())
