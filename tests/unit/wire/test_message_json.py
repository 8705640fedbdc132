"""Messages as JSON, both ways."""

from __future__ import annotations

import json
from datetime import UTC

import pytest
from google.protobuf import json_format
from hypothesis import given, settings, strategies as st

from lookout.v1 import verdicts_pb2, watches_pb2
from lookout.wire import (
    WireError,
    from_bytes,
    from_json,
    to_json,
)
from tests.clock import at


def test_json_keeps_proto_names_and_ignores_the_unknown() -> None:
    watch = watches_pb2.Watch(id="fall", question="Is anyone lying on the ground?", active_from=at(5))
    data = json.loads(to_json(watch))
    assert data["active_from"] == "1970-01-01T00:00:00.005Z"
    data["of_a_later_version"] = {"x": 1}
    assert from_json(json.dumps(data).encode(), watches_pb2.Watch) == watch


def test_a_verdict_in_json_needs_no_protobuf_library() -> None:
    verdict = verdicts_pb2.Verdict(outcome=verdicts_pb2.Verdict.OUTCOME_ANSWERED, p_yes=0.0, epoch=2**41)
    verdict.end.FromMilliseconds(1_700_000_000_500)
    data = json.loads(to_json(verdict))
    assert data["outcome"] == "answered"
    assert (data["p_yes"], data["window"], data["epoch"]) == (0.0, 0, 2**41)
    assert data["end"] == "2023-11-14T22:13:20.500Z"
    assert "p_yes" not in json.loads(to_json(verdicts_pb2.Verdict(outcome=3)))
    assert "reason" not in data


@pytest.mark.parametrize("name", ["gap", "GAP", "OUTCOME_GAP", 3])
def test_names_of_enumeration_values_are_read_in_every_form(name: str | int) -> None:
    data = json.dumps({"outcome": name}).encode()
    assert from_json(data, verdicts_pb2.Verdict).outcome == verdicts_pb2.Verdict.OUTCOME_GAP


def test_names_that_do_not_exist_are_a_later_releases_in_records_and_a_mistake_in_requests() -> None:
    data = b'{"id": "fall", "asked": "stride", "severity": "info"}'
    assert from_json(data, watches_pb2.Watch).asked == watches_pb2.Watch.ASKED_UNSPECIFIED
    with pytest.raises(WireError, match="asked: 'stride' is unknown; it is one of windows, strides"):
        from_json(data, watches_pb2.Watch, closed=True)
    fine = from_json(data.replace(b"stride", b"strides"), watches_pb2.Watch, closed=True)
    assert (fine.asked, fine.severity) == (watches_pb2.Watch.ASKED_STRIDES, watches_pb2.SEVERITY_INFO)


@settings(deadline=None)
@given(
    st.builds(
        verdicts_pb2.Verdict,
        epoch=st.integers(0, 2**53),
        window=st.integers(0, 2**53),
        outcome=st.sampled_from([0, 1, 3, 4, 5]),
        p_yes=st.none() | st.floats(0, 1),
        reason=st.text(max_size=5),
        activity=st.binary(max_size=4),
        evidence=st.lists(st.builds(verdicts_pb2.Evidence, row=st.integers(0, 9)), max_size=2),
        start=st.datetimes(timezones=st.just(UTC)),
        rule=st.builds(watches_pb2.Rule, k=st.integers(0, 3)),
    )
)
def test_json_loses_nothing(verdict: verdicts_pb2.Verdict) -> None:
    assert from_json(to_json(verdict), verdicts_pb2.Verdict) == verdict
    standard = json_format.MessageToJson(verdict, preserving_proto_field_name=True)
    assert from_json(standard.encode(), verdicts_pb2.Verdict) == verdict


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"version": "x"}', b"\xff\xfe"])
def test_bad_json_gets_one_clear_error(bad: bytes) -> None:
    with pytest.raises(WireError, match=r"lookout\.v1\.Watch"):
        from_json(bad, watches_pb2.Watch)


def test_bad_bytes_get_one_clear_error() -> None:
    with pytest.raises(WireError, match=r"lookout\.v1\.Verdict"):
        from_bytes(b"\x0a\xff\xff\xff\xff\x0f", verdicts_pb2.Verdict)
