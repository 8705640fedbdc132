"""Whatever a record's bytes are, reading it gives a message or a WireError: for every topic."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings, strategies as st

from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    BacktestPart,
    PartSpan,
    PlannedRecording,
    RecordingJob,
    RecordingOutcome,
    RecordingPlan,
)
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    PIPELINE,
    RECORDING_FLOWS,
    SEGMENTS,
    WireError,
    all_topics,
    door,
    from_json,
    message_kind,
    read_record,
    received,
    to_json,
)
from lookout.wire.ranges import check_ranges
from lookout.wire.topics import NOTIFY

TOPICS = [topic.name for topic in all_topics() if message_kind(topic.name) is not None]
JSON = {name for name in TOPICS if message_kind(name) in door._JSON.values()}

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
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes(topic: str, data: st.DataObject) -> None:
    check(topic, data.draw(st.binary(max_size=200)))


@pytest.mark.slow
@pytest.mark.parametrize("topic", sorted(JSON))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    with pytest.raises(WireError, match="its records are raw bytes"):
        read_record("camera.segments.v1", b"")


def test_every_topic_has_its_validator() -> None:
    flows = (*PIPELINE.values(), *RECORDING_FLOWS, NOTIFY)
    raw = {SEGMENTS.name, *(flow.dead_letters.name for flow in flows)}
    kinds = {topic.name: message_kind(topic.name) for topic in all_topics()}
    assert {name for name, kind in kinds.items() if kind is None} == raw
    # Whose key is not compared with the contents is named there, with the reason.
    assert {kind for kind in kinds.values() if kind is not None} == {*door._KEYS, *door._KEYLESS}


def test_a_record_under_another_key_is_refused() -> None:
    label = Label(camera="gate", watch="fall", incident="1234abcd")
    row = SimpleNamespace(
        topic="labels.v1", partition=0, camera="gate/fall/1234abcd", value=to_json(label), timestamp_ms=0
    )
    assert received(Label, row) == label
    row.camera = "gate/fall/1234abcd-again"
    with pytest.raises(WireError, match="under the key"):
        received(Label, row)


def plan(**fields: Any) -> RecordingPlan:
    spans = [PartSpan(number=number, first=8 * number, stop=8 * number + 8) for number in range(2)]
    recording = PlannedRecording(uri="file:///a.mp4", parts=2, spans=spans)
    return RecordingPlan(**{"job": RecordingJob(id="j"), "parts": 2, "recordings": [recording], **fields})


def past(**fields: Any) -> RecordingPlan:
    ranges = [BacktestPart(partition=0, first=0, stop=9), BacktestPart(partition=1, first=3, stop=5)]
    job = RecordingJob(id="j", backtest=BacktestJob())
    return RecordingPlan(**{"job": job, "parts": 2, "partition_parts": [1, 1], "past": ranges, **fields})


@pytest.mark.parametrize(
    ("made", "whole"),
    [
        (plan(), True),
        (past(), True),
        (plan(parts=0, recordings=[], reason="refused"), True),
        (plan(parts=3), False),
        (plan(recordings=[PlannedRecording(parts=2, spans=[PartSpan(stop=8)])]), False),
        (plan(job=RecordingJob(id="another")), False),
        (past(partition_parts=[1]), False),
        (past(partition_parts=[5, 5]), False),
        (past(parts=4096), False),
        (past(past=[BacktestPart(first=9, stop=3), BacktestPart(stop=1)]), False),
    ],
)
def test_a_plan_has_the_parts_that_it_counts(made: RecordingPlan, whole: bool) -> None:
    outcome = RecordingOutcome(job="j", plan=made)
    row = SimpleNamespace(
        topic="recording.results.v1",
        partition=0,
        camera="j",
        value=outcome.SerializeToString(),
        timestamp_ms=0,
    )
    if whole:
        assert received(RecordingOutcome, row) == outcome
    else:
        with pytest.raises(WireError):
            received(RecordingOutcome, row)
