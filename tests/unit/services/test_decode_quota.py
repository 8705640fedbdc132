"""What one camera may use, and the outcome that says when it is used up."""

from __future__ import annotations

import pytest

from lookout.runtime import BadRecordError, DeadLetter, Record, TransientError
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.wire import SEGMENTS
from tests.unit.services.decode_case import PIECES, World, samples


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


def test_a_camera_that_sent_only_rubbish_is_forgotten_with_its_quota_s_interval() -> None:
    """Not before: it would have its whole quota again. Not much later: invented ids take no memory."""
    world = World(quota_failures=2, quota_interval_s=60.0)
    for _ in range(2):
        world.now += 5.0
        record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), round(world.now * 1000))
        with pytest.raises(BadRecordError):
            world.handler.handle(world.state, record)
        world.take(world.handler.rejected(world.state, record, DeadLetter("unreadable")))
        assert world.handler.tick(world.state, world.now + 1.0) is None
    over = world.handler.handle(
        world.state, Record(SEGMENTS.name, 0, 10, "yard", b"more", (), record.timestamp_ms)
    )
    assert over.counts == {"over_quota": 1}
    gone = world.handler.tick(world.state, world.now + 61.0)
    assert gone is not None
    assert gone.forget


def test_a_camera_whose_pixels_nobody_reads_waits_and_is_then_skipped_by_name() -> None:
    world = World(store={"camera_bytes": 200_000, "camera_wait_s": 30.0})  # a segment's pixels: 150 528
    [first] = world.send(PIECES[0])
    with pytest.raises(TransientError, match="150528 bytes of camera yard wait"):
        world.send(PIECES[1])
    decoded = world.counts["segments"]
    world.monotonic += 29.0
    with pytest.raises(TransientError):
        world.again()
    world.monotonic += 1.0
    [skipped] = world.again()
    assert skipped.event.kind == StreamEvent.KIND_SKIPPED
    assert skipped.event.reason.startswith("quota: 150528 bytes of camera yard wait for their consumer")
    assert skipped.event.segment.offset == 1
    assert world.send(PIECES[1])[0].event.kind == StreamEvent.KIND_SKIPPED  # it has waited already
    assert world.counts["segments"] == decoded
    world.store.release([first.segment.pixels])
    [after] = world.send(PIECES[2])
    assert samples([after]) == [8, 9, 10, 11]
    with pytest.raises(TransientError):
        world.send(PIECES[3])  # the next wait begins anew


def test_a_camera_over_its_quota_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(store={"camera_bytes": 100_000, "camera_wait_s": 30.0})  # less than a segment's pixels
    world.send(PIECES[0])
    monkeypatch.setattr(world.handler, "_decoder", None)
    with pytest.raises(TransientError):
        world.send(PIECES[1])


def test_a_wait_for_room_changes_no_epoch() -> None:
    """A segment that opens an epoch is tried again as what it is."""
    world = World(store={"camera_bytes": 200_000})
    [first] = world.send(PIECES[0])
    world.takeover(changed=True)
    with pytest.raises(TransientError):
        world.send(PIECES[1])
    world.store.release([first.segment.pixels])
    records = world.again()
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[0].event.reason == "configuration"
    assert world.counts["gaps"] == 1
