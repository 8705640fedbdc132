"""Decode without Kafka: epochs, gaps, late and rejected segments, pixels made again, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from lookout.codec import SoftwareDecoder
from lookout.runtime import BadRecordError, DeadLetter, Record, RecordsGoneError, Result, StoredCheckpoint
from lookout.services.decode.handler import CameraState, DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.store import LineageBrokenError, StoreSettings, TensorStore
from lookout.v1.frames_pb2 import Frame, FramesRecord
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import FRAMES, SEGMENTS
from tests.streams import segments

START_MS = 1_700_000_000_000


class Segments:
    """What is in the topic, for reading again."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        assert (topic, partition) == (SEGMENTS.name, 0)
        missing = [each for each in offsets if each not in self.records]
        if missing:
            raise RecordsGoneError(f"no offset {missing}")
        return [self.records[each] for each in offsets]


class World:
    """One camera and its handler; `send` is what the worker does."""

    def __init__(self, **more: object) -> None:
        given = {"mode": "local", "window_s": 6.0, "change": "vectors"}
        self.settings = DecodeSettings(**{**given, **more})  # type: ignore[arg-type]
        self.topic = Segments()
        self.store = TensorStore(StoreSettings())
        self.now = START_MS / 1000
        self.handler = DecodeHandler(self.settings, SoftwareDecoder(), self.store, self.topic)
        self.state: CameraState = self.handler.load("yard", None)
        self.checkpoint: Checkpoint | None = None

    def send(self, value: bytes, after_ms: int = 2000, **headers: str) -> list[FramesRecord]:
        """Handle one segment that Kafka got so long after the one before."""
        offset = len(self.topic.records)
        self.now += after_ms / 1000
        pairs = tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items())
        record = Record(SEGMENTS.name, 0, offset, "yard", value, pairs, round(self.now * 1000))
        self.topic.records[offset] = record
        return self.take(self.handler.handle(self.state, record))

    def take(self, result: Result | None) -> list[FramesRecord]:
        assert result is not None
        if result.checkpoint is not None:
            self.checkpoint = result.checkpoint
        assert all(output.topic == FRAMES.name for output in result.outputs)
        return [FramesRecord.FromString(output.value or b"") for output in result.outputs]

    def wait(self, seconds: float) -> list[FramesRecord]:
        """Let time pass, two ticks a second."""
        found = []
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            result = self.handler.tick(self.state, self.now)
            found += self.take(result) if result is not None else []
        return found

    def takeover(self, *, changed: bool = False) -> None:
        """Another worker begins with the checkpoint."""
        assert self.checkpoint is not None
        assert self.checkpoint.ByteSize() < 1024
        again = Checkpoint.FromString(self.checkpoint.SerializeToString())
        self.state = self.handler.load("yard", StoredCheckpoint(again, 0, changed))


PIECES = segments(8.0)


def samples(records: Sequence[FramesRecord]) -> list[int]:
    """Grid points in order."""
    return [frame.sample for record in records for frame in record.segment.frames]


def test_segments_of_one_stream_are_one_epoch() -> None:
    world = World()
    records = [record for piece in PIECES for record in world.send(piece)]
    assert [r.epoch for r in records] == [START_MS + 2000] * 4  # record time of the segment that opens it
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
    expected = [record for piece in PIECES for record in undisturbed.send(piece)]
    found = []
    for piece in PIECES:
        found += world.send(piece)
        world.takeover()
    assert found == expected


def test_captured_at_is_the_wall_clock_of_the_epoch() -> None:
    record = World().send(PIECES[0], captured_at="1600000000123")[0]
    assert record.wall_offset_us == 1_600_000_000_123_000


def test_a_lost_segment_leaves_a_hole() -> None:
    world = World()
    records = [*world.send(PIECES[0]), *world.send(PIECES[2])]
    assert records[0].epoch == records[1].epoch
    assert samples(records) == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("first", "second", "reason", "settings"),
    [(0, 3, "clock-jump", {"window_s": 2.0}), (3, 0, "clock-reset", {"overlap_s": 1.0})],
)
def test_a_longer_hole_or_a_clock_set_back_opens_an_epoch_behind_a_gap(
    first: int, second: int, reason: str, settings: dict[str, float]
) -> None:
    world = World(**settings)
    records = [*world.send(PIECES[first]), *world.send(PIECES[second])]
    assert [r.WhichOneof("body") for r in records] == ["segment", "event", "segment"]
    gap = records[1]
    assert (gap.epoch, gap.event.kind, gap.event.reason) == (records[0].epoch, StreamEvent.KIND_GAP, reason)
    assert gap.event.start_us == records[0].segment.end_us
    assert records[2].epoch == records[0].epoch + 2000
    assert samples(records[2:]) == [0, 1, 2, 3]
    assert records[2].segment.frames[0].basis == Frame.BASIS_NEW


def test_a_segment_twice_is_late() -> None:
    world = World()
    for piece in PIECES[:3]:
        world.send(piece)
    late = world.send(PIECES[1])
    assert [r.event.kind for r in late] == [StreamEvent.KIND_LATE]
    assert (late[0].event.start_us, late[0].event.end_us) == (2_000_000, 4_000_000)
    assert late[0].event.segment.offset == 3
    assert samples(world.send(PIECES[3])) == [12, 13, 14, 15]


def test_silence_is_one_gap_whoever_notices() -> None:
    world = World(silence_s=10.0)
    epoch = world.send(PIECES[0])[0].epoch
    assert world.wait(9.5) == []
    gap = world.wait(1.0)
    assert [(r.event.kind, r.event.reason, r.epoch) for r in gap] == [
        (StreamEvent.KIND_GAP, "silence", epoch)
    ]
    assert world.wait(100.0) == []
    world.takeover()
    assert world.wait(100.0) == []
    after = world.send(PIECES[1], after_ms=60_000)
    assert [r.WhichOneof("body") for r in after] == ["segment"]
    assert after[0].epoch == round(world.now * 1000)
    # Nobody ticked: the time stamps of the records say the same.
    replayed = World(silence_s=10.0)
    replayed.send(PIECES[0])
    records = replayed.send(PIECES[1], after_ms=60_000)
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert (records[0].epoch, records[1].epoch) == (epoch, epoch + 60_000)
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
    world.send(PIECES[0], captured_at=str(START_MS))
    records = world.send(PIECES[1], after_ms, captured_at=str(START_MS + captured_ms))
    assert [r.WhichOneof("body") for r in records] == bodies


def test_a_segment_longer_than_a_silence_is_none() -> None:
    world = World(silence_s=1.0)
    records = [
        record
        for at, piece in enumerate(PIECES)
        for record in world.send(piece, captured_at=str(START_MS + 2_000 * at))
    ]
    assert len({r.epoch for r in records}) == 1


def test_an_outage_or_a_takeover_is_no_silence() -> None:
    world = World(silence_s=10.0)
    world.send(PIECES[0])
    assert world.wait(5.0) == []
    world.now += 3600  # no ticks: no broker
    assert world.wait(2.0) == []
    world.takeover()
    assert world.wait(9.5) == []
    assert len(world.wait(1.0)) == 1


def test_another_configuration_opens_an_epoch() -> None:
    world = World()
    world.send(PIECES[0])
    world.takeover(changed=True)
    records = world.send(PIECES[1])
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[0].event.reason == "configuration"
    assert records[1].epoch > records[0].epoch


def test_a_longer_stride_is_another_configuration() -> None:
    """Blocks of two lengths in one epoch would share indices, and outcomes would be lost."""
    digests = {World(stride_s=stride).handler.config_digest for stride in (1.0, 2.0, 6.0)}
    assert len(digests) == 3


def test_epochs_are_unique_over_partitions_and_lost_state() -> None:
    first, second = World(), World()
    a = first.send(PIECES[0])[0].epoch
    b = second.send(PIECES[0], after_ms=3000)[0].epoch  # the same camera id in another partition
    first.state = first.handler.load("yard", None)  # the state topic was lost
    c = first.send(PIECES[1])[0].epoch
    assert len({a, b, c}) == 3
    assert c > a


def test_an_epoch_is_above_its_predecessor_whatever_record_time_says() -> None:
    world = World()
    before = world.send(PIECES[3])[0].epoch
    records = world.send(PIECES[0], after_ms=-5000)
    assert [r.WhichOneof("body") for r in records] == ["event", "segment"]
    assert records[1].epoch == before + 1


def test_stream_time_is_anchored_to_the_wall_clock_anew() -> None:
    """The camera's clock runs slow: 2 s of video come every 2.1 s; one segment comes late by itself."""
    world = World(wall_anchor_s=4.0)
    delays = [2100, 2100, 5000, -800]
    records = [r for piece, after in zip(PIECES, delays, strict=True) for r in world.send(piece, after)]
    walls = [r.wall_offset_us - START_MS * 1000 for r in records]
    # Anchored at 0 s, then at 4 s with the smallest offset since (not with that of the late segment).
    assert walls == [2_100_000, 2_100_000, 2_200_000, 2_200_000]
    assert len({r.epoch for r in records}) == 1


def test_a_neighbours_records_show_that_a_camera_is_silent() -> None:
    world = World(silence_s=10.0)
    record = world.send(PIECES[0])[0]
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
    world = World(silence_s=1.0, forget_days=2.0)
    world.send(PIECES[0])
    world.wait(2.0)
    world.now += 2 * 86_400 - 60
    assert world.handler.tick(world.state, world.now) is None
    result = world.handler.tick(world.state, world.now + 120)
    assert result is not None
    assert result.forget
    assert not result.outputs


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


def test_rubbish_is_no_sign_of_life() -> None:
    world = World(silence_s=10.0)
    world.send(PIECES[0])
    arrived = round(world.now * 1000)
    record = Record(SEGMENTS.name, 0, 9, "yard", b"rubbish", (), arrived + 9_000)
    with pytest.raises(BadRecordError):
        world.handler.handle(world.state, record)
    world.handler.rejected(world.state, record, DeadLetter("unreadable"))
    assert world.handler.passed(world.state, arrived + 10_500) is not None


def test_a_late_segment_of_a_camera_that_tells_its_clock_is_late_however_late() -> None:
    world = World(overlap_s=1.0, window_s=6.0)
    for at, piece in enumerate(PIECES):
        world.send(piece, captured_at=str(START_MS + 2000 * at))
    late = world.send(PIECES[0], captured_at=str(START_MS))
    assert [r.event.kind for r in late] == [StreamEvent.KIND_LATE]
    assert (late[0].event.start_us, late[0].event.end_us) == (0, 2_000_000)


def test_a_camera_id_in_two_partitions_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for partition in (0, 1, 0, 1):
        record = Record(SEGMENTS.name, partition, 0, "yard", PIECES[0], (), START_MS)
        world.handler.handle(world.handler.load("yard", None), record)
    said = capsys.readouterr().out
    assert said.count("two partitions") == 1
    assert "yard" in said
    assert world.handler.counts["in two partitions"] == 1


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
    world.send(PIECES[0])
    before = world.state.stream
    with pytest.raises(BadRecordError) as caught:
        world.send(value)
    assert caught.value.reason == reason
    assert world.state.stream == before
    assert samples(world.send(PIECES[1])) == [4, 5, 6, 7]


def test_limits_are_those_of_the_settings() -> None:
    with pytest.raises(BadRecordError) as caught:
        World(segment_bytes=1000).send(PIECES[0])
    assert caught.value.reason == "too-many-bytes"


def test_codecs_without_vectors_rest_on_luma() -> None:
    record = World().send(segments(2.0, codec="libx265")[0])[0]
    assert not record.segment.facts.has_vectors
    assert [f.basis for f in record.segment.frames] == [Frame.BASIS_NEW] + [Frame.BASIS_LUMA] * 3
    assert not any(f.motion for f in record.segment.frames)


def test_no_vectors_are_exported_where_pixels_decide() -> None:
    world = World(change="luma")
    records = [record for piece in PIECES for record in world.send(piece)]
    assert samples(records) == list(range(16))
    frames = [frame for record in records for frame in record.segment.frames]
    assert {frame.basis for frame in frames[1:]} == {Frame.BASIS_LUMA}
    assert not any(frame.motion for frame in frames)
    assert not any(record.segment.facts.has_vectors or record.segment.facts.gather for record in records)
    # The cell a segment ends in is the next one's: what follows its last sample is not decoded.
    assert [record.segment.facts.decoded for record in records] == [16] * 4  # of 20


@pytest.mark.parametrize("change", ["luma", "vectors"])
def test_pixels_are_made_again_to_the_bit(change: str) -> None:
    world = World(change=change)
    world.send(PIECES[0])
    record = world.send(PIECES[1])[0]
    ref = record.segment.pixels
    assert list(ref.shape) == [4, 112, 112, 3]
    held = world.store.get(ref)
    assert held is not None
    assert np.array_equal(world.handler.materialize(ref, record), held)
    assert [each.offset for each in ref.segments] == [1]


def test_pixels_that_cannot_be_made_say_so() -> None:
    world = World()
    record = world.send(PIECES[0])[0]
    ref = record.segment.pixels
    other = Record(SEGMENTS.name, 0, 0, "yard", PIECES[1])
    world.topic.records[0] = other
    with pytest.raises(LineageBrokenError, match="other pixels"):
        world.handler.materialize(ref, record)
    del world.topic.records[0]
    with pytest.raises(LineageBrokenError, match="no offset"):
        world.handler.materialize(ref, record)
    with pytest.raises(LineageBrokenError, match="with a segment"):
        world.handler.materialize(ref, FramesRecord(event=StreamEvent()))


def test_uris_are_refused_unless_allowed() -> None:
    world = World()
    with pytest.raises(BadRecordError) as caught:
        world.send(b"https://cameras.example/a.ts\r\n", content_type="text/uri-list")
    assert caught.value.reason == "uri-refused"
