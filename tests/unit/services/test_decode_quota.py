"""What one camera may use, and the outcome that says when it is used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.worker import DeadLetter, Output, Record
from lookout.v1.lineage_pb2 import CAUSE_QUOTA, StreamEvent
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Reason
from lookout.wire import SEGMENTS, headers
from tests.changed_settings import store_settings
from tests.unit.services.decode_case import World, pieces, samples


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (lambda: {"quota_bytes": len(pieces()[0]) + 1}, "bytes"),
        (lambda: {"quota_work_s": 0.001}, "s of decoding"),
    ],
)
def test_a_camera_over_its_quota_is_skipped_by_name(
    limits: Callable[[], dict[str, float]], reason: str
) -> None:
    world = World(quota_interval_s=60.0, **limits())
    sent = []
    while not (sent and sent[-1].HasField("event")):
        sent = world.send(pieces()[len(world.topic.records)])
        assert len(world.topic.records) < 4
    event = sent[0].event
    assert event.kind == StreamEvent.KIND_SKIPPED
    assert event.reason.startswith("quota: ")
    assert reason in event.reason
    assert event.segment.offset == len(world.topic.records) - 1
    world.takeover()
    assert world.send(pieces()[0])[0].HasField("event")  # the checkpoint keeps what was used
    assert world.send(pieces()[1], after_ms=60_000)[-1].HasField("segment")  # another interval


def test_failures_count_in_the_quota() -> None:
    world = World(quota_failures=2)
    world.send(pieces()[0])
    record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), round(world.now * 1000))
    for _ in range(2):
        with pytest.raises(BadRecordError):
            world.handler.handle(world.state, record)
        world.take(world.handler.rejected(world.state, record, DeadLetter("unreadable")))
    assert "2 failed segments" in world.send(pieces()[1])[0].event.reason


def test_a_notice_that_the_camera_moved_gives_no_new_quota() -> None:
    """Whoever writes a camera's segments can write such notices between them."""
    world = World(quota_failures=3, quota_interval_s=60.0)
    record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), round(world.now * 1000))
    for _ in range(3):
        with pytest.raises(BadRecordError):
            world.handler.handle(world.state, record)
        world.take(world.handler.rejected(world.state, record, DeadLetter("unreadable")))
        assert world.notice("7").forget
        world.state = world.handler.load("yard", None)
    assert world.handler.handle(world.state, record).counts == {"over_quota": 1}
    later = replace(record, timestamp_ms=record.timestamp_ms + 60_000)
    with pytest.raises(BadRecordError):
        world.handler.handle(world.state, later)


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
    [letter] = gone.outputs
    assert headers.text(letter.headers, headers.RECORDS) == "1"


class BadSegments:
    """Segments of one camera that nothing can be made of, as the worker hands them over."""

    def __init__(self, world: World) -> None:
        self.world, self.offset, self.dead_letters = world, 0, 0

    def send(self, count: int, after_ms: int = 10) -> None:
        """That many, one after the other."""
        world = self.world
        for _ in range(count):
            world.now += after_ms / 1000
            at_ms = round(world.now * 1000)
            record = Record(SEGMENTS.name, 0, self.offset, "yard", b"rubbish", (), at_ms)
            self.offset += 1
            try:
                world.take(world.handler.handle(world.state, record))
            except BadRecordError as error:
                self.dead_letters += 1
                world.take(world.handler.rejected(world.state, record, DeadLetter(error.reason)))


def number(letter: Output, name: str) -> int:
    """A header of a dead letter."""
    found = headers.number(letter.headers, name)
    assert found is not None
    return found


def test_a_thousand_bad_segments_are_all_accounted_for() -> None:
    """Over the quota one dead letter counts them, also where another worker writes it."""
    world = World(quota_failures=300, quota_interval_s=60.0)
    bad = BadSegments(world)
    bad.send(600)
    world.takeover()
    bad.send(400)
    assert world.letters == []
    world.takeover()
    world.wait(70.0)
    [letter] = world.letters
    assert bad.dead_letters == 300
    assert bad.dead_letters + number(letter, headers.RECORDS) == 1000
    assert (number(letter, headers.SOURCE_OFFSET), number(letter, headers.SOURCE_LAST_OFFSET)) == (300, 999)
    assert headers.text(letter.headers, headers.REASON) == "quota"
    assert headers.text(letter.headers, headers.SOURCE_TOPIC) == SEGMENTS.name
    assert headers.text(letter.headers, headers.DROPPED) == "headers,value"
    assert (letter.key, letter.value) == ("yard", None)
    world.wait(200.0)
    assert len(world.letters) == 1


def test_segments_left_out_are_counted_once_an_interval_without_a_pause() -> None:
    world = World(quota_failures=3, quota_interval_s=60.0)
    bad = BadSegments(world)
    world.send(pieces()[0])  # an open stream: it is counted all the same
    bad.send(360, after_ms=500)
    world.wait(70.0)
    counts = [number(letter, headers.RECORDS) for letter in world.letters]
    assert len(counts) <= 4
    assert bad.dead_letters + sum(counts) == 360
    edges = [
        (number(letter, headers.SOURCE_OFFSET), number(letter, headers.SOURCE_LAST_OFFSET))
        for letter in world.letters
    ]
    assert all(last < first for (_, last), (first, _) in pairwise(edges))


def test_a_count_that_is_due_waits_for_a_segment_that_is_tried_again() -> None:
    world = World(quota_failures=2, quota_interval_s=60.0)
    bad = BadSegments(world)
    bad.send(5)
    world.now += 60.0
    reader = world.handler.reader
    decoder, reader.decoder = reader.decoder, UnavailableDecoder()
    with pytest.raises(TransientError):
        world.send(pieces()[0])
    assert world.letters == []
    reader.decoder = decoder
    world.again()
    [letter] = world.letters
    assert number(letter, headers.RECORDS) == 3


def test_a_camera_that_is_forgotten_leaves_its_count() -> None:
    world = World(quota_failures=2)
    BadSegments(world).send(5)
    result = world.handler.forget(world.state)
    assert result is not None
    [letter] = result.outputs
    assert number(letter, headers.RECORDS) == 3


def test_record_time_of_other_cameras_ends_the_interval_too() -> None:
    world = World(quota_failures=2, quota_interval_s=60.0)
    BadSegments(world).send(5)
    at_ms = round(world.now * 1000)
    assert world.handler.passed(world.state, at_ms + 59_000) is None
    world.take(world.handler.passed(world.state, at_ms + 61_000))
    [letter] = world.letters
    assert number(letter, headers.RECORDS) == 3


class UnavailableDecoder:
    """A fake decoder whose processes are away."""

    def decode(self, data: bytes, request: DecodeRequest) -> DecodedSegment:
        raise CodecError(Reason.UNAVAILABLE, "no decoder process")


def test_a_camera_whose_pixels_nobody_reads_waits_and_is_then_skipped_by_name() -> None:
    world = World(
        store=store_settings(camera_bytes=200_000, camera_wait_s=30.0)
    )  # a segment's pixels: 150 528
    [first] = world.send(pieces()[0])
    with pytest.raises(TransientError, match="150528 bytes of camera yard are unread"):
        world.send(pieces()[1])
    decoded = world.counts["segments"]
    world.monotonic += 29.0
    with pytest.raises(TransientError):
        world.again()
    world.monotonic += 1.0
    [skipped] = world.again()
    assert skipped.event.kind == StreamEvent.KIND_SKIPPED
    assert skipped.event.reason.startswith("quota: 150528 bytes of camera yard are unread")
    assert skipped.event.segment.offset == 1
    assert world.send(pieces()[1])[0].event.kind == StreamEvent.KIND_SKIPPED  # it has waited already
    assert world.counts["segments"] == decoded
    world.store.release([first.segment.pixels])
    [after] = world.send(pieces()[2])
    assert samples([after]) == [8, 9, 10, 11]
    with pytest.raises(TransientError):
        world.send(pieces()[3])  # the next wait begins again


def test_a_camera_over_its_quota_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(
        store=store_settings(camera_bytes=100_000, camera_wait_s=30.0)
    )  # less than a segment's pixels
    world.send(pieces()[0])
    monkeypatch.setattr(world.handler.reader, "decoder", None)
    with pytest.raises(TransientError):
        world.send(pieces()[1])


def test_a_wait_for_room_changes_no_epoch() -> None:
    """A segment that opens an epoch is tried again as what it is."""
    world = World(store=store_settings(camera_bytes=200_000))
    [first] = world.send(pieces()[0])
    world.takeover(changed=True)
    with pytest.raises(TransientError):
        world.send(pieces()[1])
    world.store.release([first.segment.pixels])
    records = world.again()
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[0].event.reason == "configuration"
    assert world.counts["gaps"] == 1


def test_a_tenant_over_its_quota_is_named_with_what_to_do() -> None:
    quotas = '{"acme": {"bytes": 1}, "none": {"cameras": 0}}'
    world = World(tenant_quotas=quotas)
    [first] = world.send(pieces()[0], lookout_tenant="acme")
    assert first.HasField("segment")
    [left_out] = world.send(pieces()[1], lookout_tenant="acme")
    event = left_out.event
    assert (event.kind, event.cause) == (StreamEvent.KIND_SKIPPED, CAUSE_QUOTA)
    assert "tenant 'acme' used its 1 bytes of segments in 60 s" in event.reason
    assert "LOOKOUT_TENANT_QUOTAS" in event.reason
    assert left_out.epoch == first.epoch
    gap, other = world.send(pieces()[1], lookout_tenant="globex")  # the camera changes its tenant
    assert (gap.event.reason, other.HasField("segment")) == ("tenant", True)
    assert world.counts["over_quota"] == 1
    # Another tenant's quota counts for its own footage, not for the epoch before.
    [refused] = world.send(pieces()[2], lookout_tenant="none")
    assert "tenant 'none' has its 0 cameras" in refused.event.reason


def test_segments_left_out_for_a_tenant_are_counted_in_a_dead_letter_that_says_so() -> None:
    world = World(tenant_quotas='{"acme": {"bytes": 1}}', quota_interval_s=10.0)
    world.send(pieces()[0], lookout_tenant="acme")
    for number in (1, 2):
        world.send(pieces()[number], lookout_tenant="acme")
    world.wait(11.0)
    [letter] = world.letters
    detail = headers.text(letter.headers, headers.DETAIL) or ""
    assert "2 segments were skipped" in detail
    assert "tenant 'acme'" in detail
