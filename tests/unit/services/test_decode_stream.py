"""Stream time and epochs of a camera."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lookout.errors import BadRecordError
from lookout.past.erasures import Fence
from lookout.runtime.store import LineageBrokenError
from lookout.runtime.worker.records import Loss
from lookout.services.decode.settings import DecodeSettings
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.frames_pb2 import Frame, FramesRecord
from lookout.v1.lineage_pb2 import CAUSE_CONFIGURATION, CAUSE_ERASED, CAUSE_RETENTION, StreamEvent
from lookout.v1.watches_pb2 import Watch
from lookout.wire import check_epoch
from tests.streams import segments
from tests.unit.services.decode_case import START_MS, World, pieces, samples


def test_captured_at_is_the_wall_clock_of_the_epoch() -> None:
    record = World().send(pieces()[0], captured_at="1600000000123")[0]
    assert record.wall_offset_us == 1_600_000_000_123_000


@pytest.mark.parametrize(("stamp", "unit"), [("1600000000", "seconds"), ("1600000000123000", "microseconds")])
def test_a_captured_at_in_other_units_is_refused(stamp: str, unit: str) -> None:
    with pytest.raises(BadRecordError, match=f"captured-at is {stamp}, perhaps {unit}") as caught:
        World().send(pieces()[0], captured_at=stamp)
    assert caught.value.reason == "bad-captured-at"


@pytest.mark.parametrize(
    "stamp", ["2026-01-31T08:00:00Z", "1600000000123.5", "-1", "9" * 5000, "\u0661" * 13, "now"]
)
def test_a_captured_at_that_is_no_number_is_refused(stamp: str) -> None:
    with pytest.raises(BadRecordError, match=r"captured-at is .* not a whole number: give millis") as caught:
        World().send(pieces()[0], captured_at=stamp)
    assert caught.value.reason == "bad-captured-at"
    assert len(str(caught.value)) < 400


def test_an_empty_captured_at_is_none() -> None:
    empty, absent = World().send(pieces()[0], captured_at="")[0], World().send(pieces()[0])[0]
    assert empty.wall_offset_us == absent.wall_offset_us


@pytest.mark.parametrize(
    ("first", "second", "reason", "settings"),
    [(0, 3, "clock-jump", {"window_s": 2.0}), (3, 0, "clock-reset", {"overlap_s": 1.0})],
)
def test_a_longer_hole_or_a_clock_set_back_opens_an_epoch_behind_a_gap(
    first: int, second: int, reason: str, settings: dict[str, float]
) -> None:
    world = World(**settings)
    records = [*world.send(pieces()[first]), *world.send(pieces()[second])]
    assert [r.WhichOneof("body") for r in records] == ["segment", "event", "segment"]
    gap = records[1]
    assert (gap.epoch, gap.event.kind, gap.event.reason) == (records[0].epoch, StreamEvent.KIND_GAP, reason)
    assert gap.event.start_us == records[0].segment.end_us
    assert records[2].epoch == records[0].epoch + 2_000_000
    assert samples(records[2:]) == [0, 1, 2, 3]
    assert records[2].segment.frames[0].basis == Frame.BASIS_NEW


def test_a_camera_that_is_connected_again_within_seconds_counts_from_zero_and_is_not_late() -> None:
    world = World()
    first = world.send(pieces()[0], captured_at=str(START_MS))
    again = world.send(pieces()[0], captured_at=str(START_MS + 5_000))
    assert [r.WhichOneof("body") for r in again] == ["event", "segment"]
    assert again[0].event.reason == "clock-reset"
    assert again[1].epoch > first[0].epoch
    assert again[1].wall_offset_us == (START_MS + 5_000) * 1000
    assert samples(again[1:]) == [0, 1, 2, 3]
    # An overlap: captured while the camera was heard.
    (late,) = world.send(pieces()[0], captured_at=str(START_MS + 5_200))
    assert late.event.kind == StreamEvent.KIND_LATE


def published(world: World, clip: Sequence[bytes], begin_ms: int) -> list[FramesRecord]:
    """What decode makes of a clip sent as fast as it goes, as `lookout publish` sends it."""
    return [
        record
        for at, piece in enumerate(clip)
        for record in world.send(piece, after_ms=10, captured_at=str(begin_ms + 2000 * at))
    ]


@pytest.mark.parametrize("after_ms", [700, 1_500, 5_000, 7_500])
@pytest.mark.parametrize("pieces_of_first", [2, 4])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_clip_published_behind_another_is_watched_whole_whatever_time_the_first_reaches(
    after_ms: int, pieces_of_first: int, seed: int
) -> None:
    """A clip of a minute that is sent in a second reaches a minute ahead; the next one is none of its late
    segments."""
    world, clip = World(), segments(8.0, seed=seed)
    published(world, pieces()[:pieces_of_first], START_MS)
    second = published(world, clip, START_MS + after_ms)
    assert [r.WhichOneof("body") for r in second] == ["event", *["segment"] * 4]
    assert second[0].event.reason == "clock-reset"
    assert samples(second) == list(range(16))
    assert second[1].wall_offset_us == (START_MS + after_ms) * 1000


def test_a_clip_sent_again_as_it_was_is_late_and_nothing_is_asked_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The retry of a producer that got no answer in time, with the times of its first try."""
    world = World()
    published(world, pieces()[:3], START_MS)
    again = published(world, pieces(), START_MS)
    assert [r.event.kind for r in again[:3]] == [StreamEvent.KIND_LATE] * 3
    assert samples(again) == [12, 13, 14, 15]
    assert capsys.readouterr().out.count("they were sent twice or out of order") == 1


def test_a_clip_sent_again_behind_a_silence_is_late_as_far_as_it_was_written() -> None:
    """Kafka was away for longer than a silence while a producer waited for its answer."""
    world = World()
    published(world, pieces()[:3], START_MS)
    assert [record.event.reason for record in world.wait(40.0)] == ["silence"]
    again = published(world, pieces(), START_MS)
    assert [r.event.kind for r in again[:3]] == [StreamEvent.KIND_LATE] * 3
    assert [r.WhichOneof("body") for r in again[3:]] == ["segment"]
    assert samples(again) == [0, 1, 2, 3]
    assert again[3].epoch > again[0].epoch
    assert again[3].wall_offset_us == (START_MS + 6_000) * 1000


def test_a_hole_behind_which_the_producer_s_clock_is_late_is_still_a_hole() -> None:
    world = World()
    first = world.send(pieces()[0], captured_at=str(START_MS))
    (second,) = world.send(pieces()[2], captured_at=str(START_MS + 8_000))
    assert second.epoch == first[0].epoch


def test_epochs_are_unique_over_partitions_and_lost_state() -> None:
    first, second = World(), World()
    second.partition = 1
    a = first.send(pieces()[0])[0].epoch
    b = second.send(pieces()[0])[0].epoch  # the same camera id in another partition, in the same millisecond
    first.state = first.handler.load("yard", None)  # the state topic was lost
    c = first.send(pieces()[1])[0].epoch
    assert len({a, b, c}) == 3
    assert c > a


def test_epochs_of_two_partitions_never_meet_however_they_are_opened() -> None:
    """Breaks without number, record times that stand still: the numbers of two partitions stay apart."""
    worlds = [World(), World()]
    worlds[1].partition = 1
    seen: list[set[int]] = [set(), set()]
    for number in range(8):
        for world, epochs in zip(worlds, seen, strict=True):
            records = world.send(pieces()[3 if number % 2 else 0], after_ms=0 if number else 2000)
            epochs.update(each.epoch for each in records)
    assert len(seen[0]) == len(seen[1]) >= 4
    assert not seen[0] & seen[1]


def test_an_epoch_is_above_its_predecessor_whatever_record_time_says() -> None:
    world = World()
    before = world.send(pieces()[3])[0].epoch
    records = world.send(pieces()[0], after_ms=-5000)
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[1].epoch == before + 1000


def test_stream_time_is_anchored_to_the_wall_clock_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The camera's clock runs slow: 2 s of video come every 2.1 s; one segment comes late by itself."""
    monkeypatch.setattr(DecodeSettings, "wall_anchor_s", 4.0)
    world = World()
    delays = [2100, 2100, 5000, -800]
    records = [r for piece, after in zip(pieces(), delays, strict=True) for r in world.send(piece, after)]
    walls = [r.wall_offset_us - START_MS * 1000 for r in records]
    # Anchored at 0 s, then at 4 s with the smallest offset since (not with that of the late segment).
    assert walls == [2_100_000, 2_100_000, 2_200_000, 2_200_000]
    assert len({r.epoch for r in records}) == 1


def test_what_retention_removed_is_a_gap_of_its_own_with_its_length() -> None:
    """An hour in which nobody read was once a clock jump without length."""
    world = World(window_s=2.0)
    before = world.send(pieces()[0])
    world.loss = Loss(900, round(world.now * 1000) + 3_600_000)
    gap, after = world.send(pieces()[3], after_ms=3_600_000)
    assert (gap.event.reason, gap.event.cause) == ("retention", CAUSE_RETENTION)
    assert gap.event.start_us == before[0].segment.end_us
    length_us = after.wall_offset_us - before[0].wall_offset_us - gap.event.start_us
    assert gap.event.end_us - gap.event.start_us == length_us
    assert length_us > 3500 * 10**6
    assert after.epoch > before[0].epoch
    jump, _ = world.send(pieces()[0], after_ms=2000)  # the same loss is no cause of what comes later
    assert jump.event.reason == "clock-reset"


def test_a_loss_before_the_camera_s_newest_segment_is_none_of_it() -> None:
    world = World(window_s=2.0)
    world.send(pieces()[0])
    world.loss = Loss(900, round(world.now * 1000) - 1)
    jump, _ = world.send(pieces()[3])
    assert jump.event.reason == "clock-jump"


def test_a_segment_of_an_erased_time_is_not_decoded_and_its_pixels_are_not_made_again() -> None:
    world = World()
    first, second = (world.send(piece)[0] for piece in pieces()[:2])
    begin_us = second.wall_offset_us + second.segment.start_us
    erasure = Erasure(id="e-1", camera="yard", begin_us=begin_us + 1, end_us=begin_us + 10_000_000)
    world.handler._fence = world.handler.reader.fence = Fence([erasure])
    for piece in pieces()[2:3]:  # it comes late: its time was erased before it was read
        (event,) = world.send(piece)
        assert (event.event.kind, event.event.cause) == (StreamEvent.KIND_SKIPPED, CAUSE_ERASED)
        assert event.event.reason == "erased: e-1"
    assert world.counts["erased"] == 1
    assert len(world.handler.reader.materialize(first.segment.pixels, first)) == len(first.segment.frames)
    with pytest.raises(LineageBrokenError, match="erased by erasure e-1"):
        world.handler.reader.materialize(second.segment.pixels, second)
    assert world.store.forget_camera("yard") == 2
    assert world.store.get(first.segment.pixels) is None
    assert world.store.forget_camera("yard") == 0


def test_records_carry_the_tenant_and_the_priority_of_the_segment() -> None:
    world = World()
    [first] = world.send(pieces()[0], lookout_tenant="acme", lookout_priority="low")
    assert (first.labels.tenant, first.labels.priority) == ("acme", Watch.PRIORITY_LOW)
    [second] = world.send(pieces()[1], lookout_tenant="acme", lookout_priority="high")
    assert (second.epoch, second.labels.priority) == (first.epoch, Watch.PRIORITY_HIGH)
    world.takeover()
    [gap] = world.wait(31.0)
    assert gap.labels == second.labels


def test_a_camera_that_changes_its_tenant_begins_an_epoch() -> None:
    """No window shows one tenant's footage to a watch of another."""
    world = World()
    [first] = world.send(pieces()[0])
    assert not first.HasField("labels")
    world.takeover()
    gap, second = world.send(pieces()[1], lookout_tenant="acme")
    assert (gap.event.reason, gap.event.cause, gap.labels.tenant) == ("tenant", CAUSE_CONFIGURATION, "")
    assert second.epoch > first.epoch
    assert second.labels.tenant == "acme"


@pytest.mark.parametrize("tenant", ["9" * 5000, "ä", "a b"])
def test_a_segment_of_no_tenant_that_can_be_is_refused(tenant: str) -> None:
    world = World()
    world.send(pieces()[0])
    with pytest.raises(BadRecordError, match="bad-labels: tenant") as caught:
        world.send(pieces()[1], lookout_tenant=tenant)
    assert len(str(caught.value)) < 250
    assert [record.HasField("segment") for record in world.send(pieces()[1])] == [True]


@pytest.mark.parametrize("set_right", [False, True])
def test_a_broker_whose_clock_is_days_ahead_disables_no_camera(set_right: bool) -> None:
    """Readers judge epochs by the clocks of the machines that write them. Also where the clock was wrong when
    the camera's first epoch opened."""
    days = 3 * 86_400_000
    world = World(silence_s=10.0)
    world.broker_ahead_ms = 0.0 if set_right else days
    first = world.send(pieces()[0])[0]
    world.broker_ahead_ms = days
    if set_right:  # until now decode's machine agreed with the broker: then both were set back
        world.checkpoint = None
        world.now -= days / 1000
        world.broker_ahead_ms = 0.0
    records = world.send(pieces()[3], after_ms=60_000)
    now_ms = round(world.now * 1000 - world.broker_ahead_ms)
    assert records[-1].epoch != first.epoch
    check_epoch(records[-1].epoch, now_ms)
