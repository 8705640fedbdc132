"""Decode's records: epochs, gaps, late and rejected segments, pixels made again, checkpoints."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lookout.administration.masks import next_masks
from lookout.errors import BadRecordError, TransientError
from lookout.pruning import Change, PrunePolicy
from lookout.runtime.store import LineageBrokenError, TensorNotMadeError
from lookout.runtime.worker import DeadLetter, Record
from lookout.services.decode.away_hosts import GIVEN_UP_S, WAIT_S
from lookout.v1.frames_pb2 import Frame, FramesRecord
from lookout.v1.lineage_pb2 import CAUSE_CONFIGURATION, CAUSE_ENDED, CAUSE_MOVED, StreamEvent
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import SEGMENTS, headers, to_json
from tests.unit.services.decode_case import START_MS, World, pieces, samples


def test_segments_of_one_stream_are_one_epoch() -> None:
    world = World()
    records = [record for piece in pieces() for record in world.send(piece)]
    assert [r.epoch for r in records] == [
        1000 * (START_MS + 2000)
    ] * 4  # record time of the segment that opens it
    assert samples(records) == list(range(16))
    assert {(r.sampling.step_us, r.sampling.block_samples, r.sampling.window_blocks) for r in records} == {
        (500_000, 4, 3)
    }
    assert {r.wall_offset_us for r in records} == {START_MS * 1000 + 2_000_000}
    spans = [(r.segment.start_us, r.segment.end_us) for r in records]
    assert spans == [(n * 2_000_000, (n + 1) * 2_000_000) for n in range(4)]
    first = records[0].segment
    assert first.frames[0].basis == Frame.BASIS_NEW
    assert first.frames[0].key
    assert {f.basis for f in first.frames[1:]} == {Frame.BASIS_VECTORS}
    assert records[1].segment.frames[0].basis == Frame.BASIS_LUMA
    assert len(first.frames[1].motion) == 8 * 8 * 2
    motion = np.frombuffer(first.frames[1].motion, "<f2").reshape(8, 8)
    assert motion[4].max() > 1  # the square crosses the middle
    assert motion[0].max() < 1
    assert (first.picture.width, first.picture.rows, first.picture.coded_width) == (112, 8, 224)
    assert first.facts.codec == "h264"
    assert first.facts.has_vectors


def test_a_takeover_goes_on_where_the_checkpoint_stands() -> None:
    world, undisturbed = World(), World()
    expected = [record for piece in pieces() for record in undisturbed.send(piece)]
    found = []
    for piece in pieces():
        found += world.send(piece)
        world.takeover()
    assert found == expected


def test_a_lost_segment_leaves_a_hole() -> None:
    world = World()
    records = [*world.send(pieces()[0]), *world.send(pieces()[2])]
    assert records[0].epoch == records[1].epoch
    assert samples(records) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_segment_twice_is_late() -> None:
    world = World()
    for piece in pieces()[:3]:
        world.send(piece)
    late = world.send(pieces()[1])
    assert [r.event.kind for r in late] == [StreamEvent.KIND_LATE]
    assert (late[0].event.start_us, late[0].event.end_us) == (2_000_000, 4_000_000)
    assert late[0].event.segment.offset == 3
    assert samples(world.send(pieces()[3])) == [12, 13, 14, 15]


def test_a_camera_that_moved_ends_its_epoch_and_is_forgotten() -> None:
    world = World()
    first = world.send(pieces()[0])[0]
    result = world.notice("7")
    gap = [FramesRecord.FromString(output.value or b"") for output in result.outputs]
    assert [(r.event.kind, r.event.cause, r.epoch) for r in gap] == [
        (StreamEvent.KIND_GAP, CAUSE_MOVED, first.epoch)
    ]
    assert result.forget
    world.state = world.handler.load("yard", None)
    again = world.notice("7")
    assert (again.outputs, again.forget) == ([], True), "a second notice changes nothing"
    assert world.send(pieces()[1])[0].epoch > first.epoch, "a segment behind the notice is not lost"


def test_a_segment_with_the_header_of_a_notice_is_decoded() -> None:
    world = World()
    first = world.send(pieces()[0])[0]
    [second] = world.send(pieces()[1], **{"lookout-moved": "7"})
    assert (second.epoch, len(samples([second]))) == (first.epoch, 4)


def test_a_camera_that_moved_is_told_behind_its_silence_too() -> None:
    world = World(silence_s=10.0)
    world.send(pieces()[0])
    world.wait(11.0)
    outputs = world.notice("7").outputs
    assert [FramesRecord.FromString(output.value or b"").event.reason for output in outputs] == ["moved"]


def test_silence_is_one_gap_whoever_notices() -> None:
    world = World(silence_s=10.0)
    epoch = world.send(pieces()[0])[0].epoch
    assert world.wait(9.5) == []
    gap = world.wait(1.0)
    assert [(r.event.kind, r.event.reason, r.epoch) for r in gap] == [
        (StreamEvent.KIND_GAP, "silence", epoch)
    ]
    assert world.wait(100.0) == []
    world.takeover()
    assert world.wait(100.0) == []
    after = world.send(pieces()[1], after_ms=60_000)
    assert [r.WhichOneof("body") for r in after] == ["segment"]
    assert after[0].epoch == 1000 * round(world.now * 1000)
    # Nobody ticked: the time stamps of the records say the same.
    replayed = World(silence_s=10.0)
    replayed.send(pieces()[0])
    records = replayed.send(pieces()[1], after_ms=60_000)
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert (records[0].epoch, records[1].epoch) == (epoch, epoch + 60_000_000)
    assert records[0].event.reason == "silence"


@pytest.mark.parametrize(
    ("captured_ms", "after_ms", "bodies"),
    [
        (2_000, 3_600_000, ["segment"]),
        (60_000, 2_000, ["event", "segment"]),
    ],
)
def test_a_camera_that_tells_its_clock_is_silent_by_that_clock(
    captured_ms: int, after_ms: int, bodies: list[str]
) -> None:
    """Segments that waited in front of a broker that was away are no silence; seconds not filmed are."""
    world = World(silence_s=10.0)
    world.send(pieces()[0], captured_at=str(START_MS))
    records = world.send(pieces()[1], after_ms, captured_at=str(START_MS + captured_ms))
    assert [r.WhichOneof("body") for r in records] == bodies


def test_a_segment_longer_than_a_silence_is_none() -> None:
    world = World(silence_s=1.0)
    records = [
        record
        for at, piece in enumerate(pieces())
        for record in world.send(piece, captured_at=str(START_MS + 2_000 * at))
    ]
    assert len({r.epoch for r in records}) == 1


def test_an_outage_or_a_takeover_is_no_silence() -> None:
    world = World(silence_s=10.0)
    world.send(pieces()[0])
    assert world.wait(5.0) == []
    world.now += 3600  # no ticks: no broker
    assert world.wait(2.0) == []
    world.takeover()
    assert world.wait(9.5) == []
    assert len(world.wait(1.0)) == 1


def test_another_configuration_opens_an_epoch() -> None:
    world = World()
    world.send(pieces()[0])
    world.takeover(changed=True)
    records = world.send(pieces()[1])
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[0].event.reason == "configuration"
    assert records[1].epoch > records[0].epoch


def test_another_configuration_opens_an_epoch_also_after_two_takeovers() -> None:
    """A segment that is refused writes a checkpoint of the new settings before any segment is decoded."""
    world = World()
    world.send(pieces()[0])
    world.takeover(changed=True)
    record = Record(SEGMENTS.name, 0, len(world.topic.records), "yard", b"no video", (), START_MS + 4000)
    world.take(world.handler.rejected(world.state, record, DeadLetter("bad-container", "no video")))
    world.takeover()
    records = world.send(pieces()[1])
    assert [record.event.reason for record in records if record.HasField("event")] == ["configuration"]
    world.takeover()
    assert [record.epoch for record in world.send(pieces()[2])] == [records[-1].epoch]


@pytest.mark.parametrize("noticed", ["by a tick", "by the next segment"])
def test_silence_after_the_last_segment_of_a_recording_is_its_end(noticed: str) -> None:
    """Also over a takeover; a segment that follows in time continues the epoch."""
    world = World(silence_s=10.0)
    first = world.send(pieces()[0], lookout_last="1")[0]
    assert world.send(pieces()[1])[0].epoch == first.epoch
    world.send(pieces()[2], lookout_last="1")
    world.takeover()
    records = world.wait(12.0) if noticed == "by a tick" else world.send(pieces()[3], after_ms=60_000)
    gap = records[0].event
    assert (gap.kind, gap.reason, gap.cause) == (StreamEvent.KIND_GAP, "ended", CAUSE_ENDED)


def test_a_longer_stride_is_another_configuration() -> None:
    """Blocks of two lengths in one epoch would share indices, and outcomes would be lost."""
    digests = {World(stride_s=stride).handler.config_digest for stride in (1.0, 2.0, 6.0)}
    assert len(digests) == 3


def test_a_neighbours_records_show_that_a_camera_is_silent() -> None:
    world = World(silence_s=10.0)
    record = world.send(pieces()[0])[0]
    arrived = round(world.now * 1000)
    assert world.handler.passed(world.state, arrived + 10_000) is None
    result = world.handler.passed(world.state, arrived + 10_001)
    gap = world.take(result)
    assert [(r.event.kind, r.event.reason, r.epoch) for r in gap] == [
        (StreamEvent.KIND_GAP, "silence", record.epoch)
    ]
    assert world.handler.passed(world.state, arrived + 20_000) is None
    world.takeover()
    assert world.handler.passed(world.state, arrived + 30_000) is None


def test_a_camera_that_stays_away_is_forgotten() -> None:
    world = World(silence_s=1.0, forget_after_days=2.0)
    world.send(pieces()[0])
    world.wait(2.0)
    world.now += 2 * 86_400 - 60
    assert world.handler.tick(world.state, world.now) is None
    result = world.handler.tick(world.state, world.now + 120)
    assert result is not None
    assert result.forget
    assert not result.outputs


def test_rubbish_is_no_sign_of_life() -> None:
    world = World(silence_s=10.0)
    world.send(pieces()[0])
    arrived = round(world.now * 1000)
    record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), arrived + 9_000)
    with pytest.raises(BadRecordError):
        world.handler.handle(world.state, record)
    world.handler.rejected(world.state, record, DeadLetter("unreadable"))
    assert world.handler.passed(world.state, arrived + 10_500) is not None


def test_a_late_segment_of_a_camera_that_tells_its_clock_is_late_however_late() -> None:
    world = World(overlap_s=1.0, window_s=6.0)
    for at, piece in enumerate(pieces()):
        world.send(piece, captured_at=str(START_MS + 2000 * at))
    late = world.send(pieces()[0], captured_at=str(START_MS))
    assert [r.event.kind for r in late] == [StreamEvent.KIND_LATE]
    assert (late[0].event.start_us, late[0].event.end_us) == (0, 2_000_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 5000, "unreadable"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "unreadable"),
    ],
)
def test_rubbish_is_refused_and_changes_nothing(value: bytes, reason: str) -> None:
    world = World()
    world.send(pieces()[0])
    before = world.state.unit.stream
    with pytest.raises(BadRecordError) as caught:
        world.send(value)
    assert caught.value.reason == reason
    assert world.state.unit.stream == before
    assert samples(world.send(pieces()[1])) == [4, 5, 6, 7]


def test_limits_are_those_of_the_settings() -> None:
    with pytest.raises(BadRecordError) as caught:
        World(segment_bytes=1000).send(pieces()[0])
    assert caught.value.reason == "too-many-bytes"


@pytest.mark.parametrize("change", [Change.LUMA, Change.VECTORS])
def test_pixels_are_made_again_to_the_bit(change: Change) -> None:
    world = World(policy=PrunePolicy(change=change))
    world.send(pieces()[0])
    record = world.send(pieces()[1])[0]
    ref = record.segment.pixels
    assert list(ref.shape) == [4, 112, 112, 3]
    held = world.store.get(ref)
    assert held is not None
    assert np.array_equal(world.handler.reader.materialize(ref, record), held)
    assert [each.offset for each in ref.segments] == [1]


def test_a_new_mask_begins_an_epoch_and_pixels_from_before_it_are_not_made_again() -> None:
    world = World()
    before = world.send(pieces()[0])[0]
    door = Zone(points=[Point(x=0.1, y=0.1), Point(x=0.9, y=0.1), Point(x=0.9, y=0.9)])
    masks = next_masks("yard", None, [door], [], "ann")
    masks.versions[0].since.FromMilliseconds(round(world.now * 1000))
    world.masks["yard"] = to_json(masks)
    gap, masked = world.send(pieces()[1])
    assert (gap.event.reason, gap.event.cause) == ("masks", CAUSE_CONFIGURATION)
    assert masked.epoch > before.epoch
    assert len(masked.labels.masks) == 1
    assert (before.segment.facts.bytes > 0, masked.segment.facts.bytes) == (True, 0)
    assert masked.segment.pixels.id != before.segment.pixels.id
    with pytest.raises(LineageBrokenError, match="masks have changed since"):
        world.handler.reader.materialize(before.segment.pixels, before)
    held = world.store.get(masked.segment.pixels)
    assert held is not None
    assert np.array_equal(world.handler.reader.materialize(masked.segment.pixels, masked), held)
    world.takeover()
    assert [record.epoch for record in world.send(pieces()[2])] == [masked.epoch]
    # Lifted, it holds for what was filmed under it, and these pixels stay what they are.
    lifted = next_masks("yard", masks, [], [], "ann")
    lifted.versions[1].since.FromMilliseconds(round(world.now * 1000))
    world.masks["yard"] = to_json(lifted)
    assert np.array_equal(world.handler.reader.materialize(masked.segment.pixels, masked), held)
    later = world.send(pieces()[3], after_ms=130_000)[-1]
    assert list(later.labels.masks) == []


def test_pixels_of_another_camera_are_not_made() -> None:
    """Who may read one camera cannot name another camera's offset in a record of its own."""
    world = World()
    record = world.send(pieces()[0])[0]
    stolen = FramesRecord.FromString(record.SerializeToString())
    stolen.camera = stolen.segment.pixels.camera = "lobby"
    with pytest.raises(LineageBrokenError, match="another camera"):
        world.handler.reader.materialize(stolen.segment.pixels, stolen)
    stolen.camera = "yard"
    with pytest.raises(LineageBrokenError, match="another camera"):
        world.handler.reader.materialize(stolen.segment.pixels, stolen)


def test_pixels_that_cannot_be_made_say_so() -> None:
    world = World()
    record = world.send(pieces()[0])[0]
    ref = record.segment.pixels
    other = Record(SEGMENTS.name, 0, 0, "yard", pieces()[1])
    world.topic.records[0] = other
    with pytest.raises(LineageBrokenError, match="different pixels"):
        world.handler.reader.materialize(ref, record)
    del world.topic.records[0]
    with pytest.raises(LineageBrokenError, match="no offset"):
        world.handler.reader.materialize(ref, record)
    with pytest.raises(LineageBrokenError, match="with a segment"):
        world.handler.reader.materialize(ref, FramesRecord(event=StreamEvent()))


def test_an_absent_host_is_its_cameras_fault() -> None:
    """Whoever waits for the pixels must not take it for an absence of decode."""
    world = World(uri_schemes="http", uri_hosts="127.0.0.1", uri_networks="127.0.0.0/8")
    record = world.send(pieces()[0])[0]
    kind = ((headers.CONTENT_TYPE, headers.URI_LIST.encode()),)
    world.topic.records[0] = Record(SEGMENTS.name, 0, 0, "yard", b"http://127.0.0.1:1/x", kind)
    with pytest.raises(TensorNotMadeError, match="ConnectError"):
        world.handler.reader.materialize(record.segment.pixels, record)


def test_a_host_that_is_away_holds_up_its_camera_for_seconds_not_for_an_hour() -> None:
    """While a segment is tried again its partition commits nothing, also for other cameras."""
    world = World(uri_schemes="http", uri_hosts="127.0.0.1", uri_networks="127.0.0.0/8")
    away = partial(world.send, b"http://127.0.0.1:1/x", content_type=headers.URI_LIST)
    began = world.monotonic
    for _ in range(100):
        with pytest.raises((TransientError, BadRecordError)) as caught:
            away()
        if isinstance(caught.value, BadRecordError):
            break
        world.monotonic += 1.0
    assert caught.value.reason == "uri-away"  # type: ignore[union-attr]
    assert WAIT_S <= world.monotonic - began <= WAIT_S + 2.0
    for _ in range(5):  # and its next segments for no time at all
        with pytest.raises(BadRecordError, match="the camera's host does not respond"):
            away()
    assert samples(world.send(pieces()[0])) == [0, 1, 2, 3], "what needs no host is read"
    world.monotonic += GIVEN_UP_S
    with pytest.raises(TransientError, match="ConnectError"):
        away()


def test_uris_are_refused_unless_allowed() -> None:
    world = World()
    with pytest.raises(BadRecordError) as caught:
        world.send(b"https://cameras.example/a.ts\r\n", content_type="text/uri-list")
    assert caught.value.reason == "uri-refused"
