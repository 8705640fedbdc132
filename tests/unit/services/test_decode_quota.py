"""What one camera may use, and the outcome that says when it is used up."""

from __future__ import annotations

import pytest

from lookout.runtime import BadRecordError, DeadLetter, Record
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.wire import SEGMENTS
from tests.unit.services.decode_case import PIECES, World


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"quota_bytes": len(PIECES[0]) + 1}, "bytes"),
        ({"quota_work_s": 0.001}, "s of decoding"),
    ],
)
def test_a_camera_over_its_quota_is_skipped_by_name(limits: dict[str, float], reason: str) -> None:
    world = World(quota_interval_s=60.0, **limits)
    sent = []
    while not (sent and sent[-1].HasField("event")):
        sent = world.send(PIECES[len(world.topic.records)])
        assert len(world.topic.records) < 4
    event = sent[0].event
    assert event.kind == StreamEvent.KIND_SKIPPED
    assert event.reason.startswith("quota: ")
    assert reason in event.reason
    assert event.segment.offset == len(world.topic.records) - 1
    world.takeover()
    assert world.send(PIECES[0])[0].HasField("event")  # the checkpoint keeps what was used
    assert world.send(PIECES[1], after_ms=60_000)[-1].HasField("segment")  # another interval


def test_failures_count_in_the_quota() -> None:
    world = World(quota_failures=2)
    world.send(PIECES[0])
    record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), round(world.now * 1000))
    for _ in range(2):
        with pytest.raises(BadRecordError):
            world.handler.handle(world.state, record)
        world.take(world.handler.rejected(world.state, record, DeadLetter("unreadable")))
    assert "2 failed segments" in world.send(PIECES[1])[0].event.reason
