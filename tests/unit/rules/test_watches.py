"""One check decides whether a watch can be followed, for writers and readers alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lookout.rules import RuleError, next_version, read_watch, watch_fault
from lookout.v1.watches_pb2 import Watch


def record(**fields: Any) -> bytes:
    """A watch as it stands in Kafka."""
    return json.dumps({"id": "w", "version": 1, "question": "Is it?", **fields}).encode()


def test_a_plain_watch_has_the_default_rule() -> None:
    watch, rule = read_watch("w", record())
    assert (watch.id, rule.threshold, rule.k, rule.n) == ("w", 0.5, 1, 1)
    assert watch_fault("w", record()) is None


def test_without_an_id_the_key_is_the_id() -> None:
    assert read_watch("w", b'{"question": "Is it?"}')[0].id == "w"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": "other"}, "the record's key must be the watch's id"),
        ({"question": "  "}, "the question is empty"),
        ({"question": "x" * 1001}, "1001 characters"),
        ({"cameras": [""]}, "not a camera id"),
        ({"cameras": ["\u202eevil"]}, "not a camera id"),
        ({"cameras": ["é" * 150]}, "not a camera id"),
        ({"rule": {"threshold": 1e-9}}, "threshold must be between 0.001 and 1, not 1e-09"),
        ({"rule": {"n": 65}}, "Rule.n: 65 is outside the range 0 to 64"),
        ({"rule": {"cooldown_s": 1e300}}, "cooldown_s"),
        ({"rule": {"schedule": [{"start": "1:0", "end": "2"}]}}, "time of day"),
        ({"rule": {"schedule": [{"start": "01:00", "end": "02:00", "time_zone": "America"}]}}, "IANA"),
        ({"rule": {"zones": [{"points": [{"x": 5}] * 3}]}}, "Point.x"),
        ({"gate": {"watch": "w"}}, "cannot wait for itself"),
        ({"gate": {"watch": "camera-offline"}}, "asks the model no question"),
        ({"gate": {"watch": "\u202eevil"}}, "not a valid id"),
        ({"asked": 7}, "asked: 7 is unknown; it is one of windows, strides"),
        ({"pad": "x" * 700_000}, "the limit is 655360"),
    ],
)
def test_what_cannot_be_followed_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        read_watch("w", record(**fields))


def test_camera_offline_needs_no_question() -> None:
    read_watch("camera-offline", b'{"version": 1}')


def test_behind_the_last_version_there_is_none() -> None:
    assert next_version(Watch(id="w", version=4)) == 5
    with pytest.raises(RuleError, match="is the highest possible"):
        next_version(Watch(id="w", version=2**32 - 1))


def test_the_id_of_cameras_own_incidents_is_no_watch() -> None:
    with pytest.raises(RuleError, match="cameras' own incidents: choose another id"):
        read_watch("camera-health", b'{"version": 1, "question": "Is the lens covered?"}')
