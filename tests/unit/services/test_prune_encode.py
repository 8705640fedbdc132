"""Prune-encode without Kafka: blocks, holes, gaps, masks as facts, tokens made again, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from lookout.pruning import Anchors, unpack_mask
from lookout.runtime import BadRecordError, Record, RecordsGoneError, Result, StoredCheckpoint, TransientError
from lookout.services.prune_encode.blocks import closed_before
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.handler import CameraState, PruneEncodeHandler
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.store import (
    Fetched,
    LineageBrokenError,
    StoreFullError,
    StoreSettings,
    TensorStore,
    TensorUnavailableError,
)
from lookout.v1.frames_pb2 import Frame, FramesRecord, Picture
from lookout.v1.lineage_pb2 import RecordRef, Sampling, StreamEvent, TensorRef
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.vision import FrameInput, load_tower
from lookout.wire import FRAMES, TOKENS
from tests.tiny_models import SIZE, checkpoint

STEP = 500_000
WALL = 1_700_000_000_000_000


@cache
def encoder(family: str) -> Encoder:
    """One tower for all tests."""
    return Encoder(load_tower(checkpoint(family)), 64)


class Pixels:
    """Stands for decode: gives rows of the pixels a record names; can be away, or have lost a record."""

    def __init__(self) -> None:
        self.away = False
        self.lost: set[str] = set()

    def fetch(self, ref: TensorRef, record: Any, rows: Sequence[tuple[int, int]] | None = None) -> Fetched:
        if self.away:
            raise TensorUnavailableError(ref.id)
        if ref.id in self.lost:
            raise LineageBrokenError(ref.id)
        (first, last), *_ = rows or [(0, ref.shape[0])]
        samples = [frame.sample for frame in record.segment.frames][first:last]
        return Fetched(np.stack([picture(n, ref.shape[1], ref.shape[2]) for n in samples]), "peer")


def picture(sample: int, height: int, width: int) -> np.ndarray:
    """A still room; a bright patch moves one patch to the right with every sample."""
    out = np.random.default_rng(0).integers(80, 120, (height, width, 3), np.uint8)
    at = sample % 8 * 14
    out[:14, at : at + 14] = 250
    return out


class Topic:
    """frames.v1, for reading again."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        assert (topic, partition) == (FRAMES.name, 0)
        if missing := [each for each in offsets if each not in self.records]:
            raise RecordsGoneError(f"no offset {missing}")
        return [self.records[each] for each in offsets]


class World:
    """One camera and its handler."""

    def __init__(self, family: str = "internvl", **more: object) -> None:
        given = {"mode": "local", "window_s": 6.0, "change": "vectors", "accumulation": "since-anchor"}
        self.settings = PruneEncodeSettings(**{**given, **more})  # type: ignore[arg-type]
        self.pixels, self.topic = Pixels(), Topic()
        self.store = TensorStore(StoreSettings())
        self.now = 0.0
        self.handler = PruneEncodeHandler(
            self.settings,
            encoder(family),
            self.store,
            self.pixels,  # type: ignore[arg-type]
            self.topic,
            model_digest="m0",
            clock=lambda: self.now,
        )
        self.grid = encoder(family).tower.grid
        self.state: CameraState = self.handler.load("yard", None)
        self.checkpoint = Checkpoint()
        self.made = 0

    def frames(
        self,
        samples: Sequence[int],
        start: float,
        end: float,
        *,
        epoch: int = 1,
        corrupt: Sequence[int] = (),
        sampling: Sampling | None = None,
    ) -> FramesRecord:
        """A segment of `start` to `end` seconds with these samples; what moves is the top row."""
        grid = self.grid
        record = FramesRecord(camera="yard", epoch=epoch, wall_offset_us=WALL)
        record.sampling.CopyFrom(sampling or self.settings.sampling)
        body = record.segment
        offset, self.made = self.made, self.made + 1
        body.segment.CopyFrom(RecordRef(topic="camera.segments.v1", partition=0, offset=1000 + offset))
        body.start_us, body.end_us = round(start * 1e6), round(end * 1e6)
        for index, sample in enumerate(samples):
            v = np.zeros((grid.rows, grid.cols), "<f2")
            v[0, sample % grid.cols] = 5.0
            first = index == 0
            body.frames.add(
                time_us=sample * STEP,
                sample=sample,
                index=index,
                key=first,
                picture_type="I" if first else "P",
                corrupt=sample in corrupt,
                basis=Frame.BASIS_LUMA if first or sample in corrupt else Frame.BASIS_VECTORS,
                motion=b"" if first or sample in corrupt else v.tobytes(),
            )
        body.picture.CopyFrom(
            Picture(width=grid.width, height=grid.height, patch=grid.patch, rows=grid.rows, cols=grid.cols)
        )
        if samples:
            ref = TensorRef(id=f"pixels/{epoch}/{offset}", shape=[len(samples), grid.height, grid.width, 3])
            body.pixels.CopyFrom(ref)
        return record

    def event(self, kind: StreamEvent.Kind, at: float, epoch: int = 1) -> FramesRecord:
        """Something that happened to the stream."""
        us = round(at * 1e6)
        event = StreamEvent(kind=kind, start_us=us, end_us=us, reason="silence")
        return FramesRecord(camera="yard", epoch=epoch, wall_offset_us=WALL, event=event)

    def send(self, message: FramesRecord) -> list[TokensRecord]:
        """Handle one record."""
        offset = len(self.topic.records)
        record = Record(FRAMES.name, 0, offset, "yard", message.SerializeToString())
        self.topic.records[offset] = record
        return self.take(self.handler.handle(self.state, record))

    def take(self, result: Result) -> list[TokensRecord]:
        if result.checkpoint is not None:
            self.checkpoint = result.checkpoint
            assert self.checkpoint.ByteSize() <= 1024
        assert all(output.topic == TOKENS.name for output in result.outputs)
        return [TokensRecord.FromString(output.value or b"") for output in result.outputs]

    def takeover(self, *, changed: bool = False) -> None:
        """Another worker begins with the checkpoint."""
        again = Checkpoint.FromString(self.checkpoint.SerializeToString())
        self.state = self.handler.load("yard", StoredCheckpoint(again, 0, changed))

    def stream(self) -> list[FramesRecord]:
        """16 samples in segments of 3 s that do not end where blocks do."""
        made = []
        for first in range(0, 16, 6):
            samples = list(range(first, min(16, first + 6)))
            made.append(self.frames(samples, first / 2, samples[-1] / 2 + 0.5))
        return made


def indices(records: Sequence[TokensRecord]) -> list[int]:
    """Block indices."""
    return [record.block.index for record in records if record.HasField("block")]


def test_a_block_closes_when_nothing_can_be_added() -> None:
    assert closed_before(2_000_000, STEP, 4) == 1
    assert closed_before(1_749_999, STEP, 4) == 0
    assert closed_before(1_750_000, STEP, 4) == 1  # the cell of sample 3 is over
    assert closed_before(0, STEP, 4) == 0


def test_segments_become_blocks_whatever_their_length() -> None:
    world = World()
    batches = [world.send(record) for record in world.stream()]
    assert [indices(batch) for batch in batches] == [[0], [1, 2], [3]]
    records = [record for batch in batches for record in batch]
    for record in records:
        block = record.block
        assert (record.camera, record.epoch, record.wall_offset_us) == ("yard", 1, WALL)
        assert (block.start_us, block.end_us) == (block.index * 2_000_000, (block.index + 1) * 2_000_000)
        assert [f.sample for f in block.frames] == list(range(block.index * 4, block.index * 4 + 4))
        assert [p.anchor for p in block.patches] == [True, False, False, False]
        assert block.patches_total == 4 * 64
        assert block.model_digest == "m0"
    assert [(i.topic, i.offset) for i in records[1].block.inputs] == [(FRAMES.name, 0), (FRAMES.name, 1)]
    assert [(f.input, f.row) for f in records[1].block.frames] == [(0, 4), (0, 5), (1, 0), (1, 1)]
    assert [s.offset for s in records[1].block.embeddings.segments] == [1000, 1001]


def test_masks_and_tokens_are_those_of_the_rooms() -> None:
    world = World()
    block = world.send(world.stream()[0])[0].block
    keeps = [unpack_mask(p.keep, block.group_rows, block.group_cols) for p in block.patches]
    assert keeps[0].all()
    moved = [np.flatnonzero(keep[0]).tolist() for keep in keeps[1:]]
    assert moved == [[0], [0, 1], [0, 1]]  # columns 1, 2, 3 of patches, in groups of two, since the anchor
    assert not any(keep[1:].any() for keep in keeps[1:])
    assert [p.kept for p in block.patches] == [16, 1, 2, 2]
    assert block.patches_encoded == 4 * (16 + 1 + 2 + 2)
    assert 0 < block.flops_vision < block.flops_vision_dense
    frames = [FrameInput(picture(n, 112, 112)[None], keep) for n, keep in zip(range(4), keeps, strict=True)]
    alone = [tokens.tokens.numpy() for tokens in encoder("internvl").tower.encode(frames)]
    held = world.store.get(block.embeddings)
    assert held is not None
    assert list(block.embeddings.shape) == [21, world.grid.hidden]
    assert np.allclose(held, np.concatenate(alone), atol=1e-5)


def test_a_takeover_anywhere_changes_nothing() -> None:
    undisturbed, world = World(), World()
    expected = [r for record in undisturbed.stream() for r in undisturbed.send(record)]
    found = []
    for record in world.stream():
        found += world.send(record)
        world.takeover()
    assert found == expected


def test_damaged_first_frames_lean_on_the_block_before_also_after_a_takeover() -> None:
    runs = []
    for takeover in (False, True):
        world = World()
        world.send(world.frames([0, 1, 2, 3], 0, 2))
        world.send(world.frames([4, 5], 2, 3, corrupt=[4]))
        if takeover:
            world.takeover()
        runs.append(world.send(world.frames([6, 7], 3, 4))[0])
    assert runs[0] == runs[1]
    patches = runs[0].block.patches
    assert [p.anchor for p in patches] == [False, True, False, False]
    assert 0 < patches[0].kept < 16


def test_holes_are_blocks_without_frames_but_no_more_than_a_window() -> None:
    world = World()
    world.send(world.frames([0, 1, 2, 3], 0, 2))
    records = world.send(world.frames([13, 14], 6.5, 7.5))
    assert indices(records) == [1, 2]
    assert not records[0].block.frames
    assert not records[0].block.embeddings.id
    records = world.send(world.frames([80, 81, 82, 83], 40, 42))
    assert indices(records) == [3, 4, 5, 6, 20]
    assert [len(r.block.frames) for r in records] == [2, 0, 0, 0, 4]


def test_a_gap_closes_the_block_and_is_passed_on() -> None:
    world = World()
    world.send(world.frames([0, 1, 2, 3, 4], 0, 2.5))
    records = world.send(world.event(StreamEvent.KIND_GAP, 2.5))
    assert [r.WhichOneof("body") for r in records] == ["block", "event"]
    assert [f.sample for f in records[0].block.frames] == [4]
    assert records[1].event.reason == "silence"
    assert world.checkpoint.prune.offsets == []
    assert not world.checkpoint.prune.active
    world.takeover()
    assert world.send(world.frames([5], 2.5, 3)) == []  # nothing comes after an epoch's end
    assert world.send(world.event(StreamEvent.KIND_GAP, 3)) == []
    after = world.send(world.frames([0, 1, 2, 3], 0, 2, epoch=2))
    assert [(r.epoch, r.block.index) for r in after] == [(2, 0)]


def test_a_gap_without_an_open_block_is_passed_on_alone() -> None:
    world = World()
    world.send(world.frames([0, 1, 2, 3], 0, 2))
    records = world.send(world.event(StreamEvent.KIND_GAP, 2))
    assert [r.WhichOneof("body") for r in records] == ["event"]


def test_late_events_are_passed_on_and_old_epochs_ignored() -> None:
    world = World()
    world.send(world.frames([0], 0, 0.5, epoch=2))
    late = world.send(world.event(StreamEvent.KIND_LATE, 0, epoch=2))
    assert [r.event.kind for r in late] == [StreamEvent.KIND_LATE]
    assert world.send(world.frames([0, 1, 2, 3], 0, 2, epoch=1)) == []
    assert indices(world.send(world.frames([1, 2, 3], 0.5, 2, epoch=2))) == [0]


def test_pixels_that_are_away_are_waited_for_and_lost_ones_left_out() -> None:
    world = World()
    world.send(world.frames([0, 1], 0, 1))
    before = world.state.open
    world.pixels.away = True
    message = world.frames([2, 3], 1, 2)
    with pytest.raises(TransientError):
        world.send(message)
    assert world.state.open == before
    world.pixels.away = False
    world.pixels.lost.add("pixels/1/0")
    block = world.send(message)[0].block
    assert [f.sample for f in block.frames] == [2, 3]


def test_pixels_that_stay_away_have_a_deadline_and_an_outcome() -> None:
    world = World(pixels_wait_s=60.0)
    world.send(world.frames([0, 1], 0, 1))
    world.pixels.away = True
    message = world.frames([2, 3], 1, 2)
    for seconds in (0.0, 30.0, 59.0):
        world.now = seconds
        with pytest.raises(TransientError):
            world.send(message)
    world.now = 60.0
    block = world.send(message)[0].block
    assert not block.frames
    assert block.missing.startswith("pixels could not be had for 60 s")
    world.pixels.away = False
    after = world.send(world.frames([4, 5, 6, 7], 2, 4))[0].block
    assert (len(after.frames), after.missing) == (4, "")


def test_a_record_that_fails_in_a_later_block_leaves_no_pin_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    put, calls = world.store.put, []

    def full_at_the_second(*given: Any, **named: Any) -> TensorRef:
        calls.append(given)
        if len(calls) == 2:
            raise StoreFullError("no room")
        return put(*given, **named)

    monkeypatch.setattr(world.store, "put", full_at_the_second)
    message = world.frames(list(range(12)), 0, 6)
    with pytest.raises(TransientError):
        world.send(message)
    assert len(calls) == 2
    assert world.store.stats().pinned_bytes == 0
    assert indices(world.send(message)) == [0, 1, 2]
    assert world.store.stats().pinned_bytes > 0


def test_blocks_are_as_long_as_the_records_say() -> None:
    """Decode alone decides; another stride comes with another epoch, also over a restart."""
    world = World()
    world.send(world.frames([0, 1, 2, 3, 4], 0, 2.5))
    long = World(stride_s=3.0)
    long.topic, long.checkpoint = world.topic, world.checkpoint
    long.handler._records = world.topic
    long.takeover(changed=True)
    records = long.send(world.frames([5, 6, 7, 8], 2.5, 4.5))  # decode has not been restarted yet
    assert [(r.block.index, len(r.block.frames)) for r in records] == [(1, 4)]
    assert records[0].sampling == world.settings.sampling
    long.takeover(changed=True)
    assert [len(r.block.frames) for r in long.send(world.event(StreamEvent.KIND_GAP, 4.5))[:1]] == [1]
    records = long.send(long.frames(list(range(6)), 0, 3, epoch=2))
    assert [(r.epoch, r.block.index, len(r.block.frames)) for r in records] == [(2, 0, 6)]
    assert (records[0].sampling.block_samples, records[0].block.end_us) == (6, 3_000_000)


def test_two_samplings_in_one_epoch_contradict_each_other() -> None:
    world = World()
    world.send(world.frames([0], 0, 0.5))
    other = Sampling(step_us=250_000, block_samples=8, window_blocks=3)
    with pytest.raises(BadRecordError, match="4 FPS, blocks of 8 samples"):
        world.send(world.frames([1], 0.5, 1, sampling=other))


def test_a_block_says_why_its_frames_are_missing() -> None:
    world = World()
    world.send(world.frames([0, 1, 2, 3], 0, 2))
    skipped = world.event(StreamEvent.KIND_SKIPPED, 2)
    skipped.event.reason = "quota: 9 bytes in 60 s, the limit is 8"
    assert [r.event.kind for r in world.send(skipped)] == [StreamEvent.KIND_SKIPPED]
    world.takeover()
    records = world.send(world.frames([9, 10, 11], 4.5, 6))
    assert [(r.block.index, r.block.missing[:6]) for r in records] == [(1, "quota:"), (2, "quota:")]
    assert not world.send(world.frames([12, 13, 14, 15], 6, 8))[0].block.missing
    assert not world.send(world.frames([16, 17, 19], 8, 10))[0].block.missing


def test_the_wall_clock_of_a_block_is_that_of_its_newest_frames() -> None:
    world = World()
    world.send(world.frames([0, 1], 0, 1))
    later = world.frames([2, 3, 4, 5], 1, 3)
    later.wall_offset_us = WALL + 7
    assert world.send(later)[0].wall_offset_us == WALL + 7


def test_a_camera_that_stays_away_is_forgotten() -> None:
    world = World(forget_days=2.0)
    message = world.frames([0, 1], 0, 1).SerializeToString()
    heard_ms = 1_700_000_000_000
    world.handler.handle(world.state, Record(FRAMES.name, 0, 0, "yard", message, (), heard_ms))
    assert world.handler.tick(world.state, heard_ms / 1000 + 2 * 86_400) is None
    result = world.handler.tick(world.state, heard_ms / 1000 + 2 * 86_400 + 1)
    assert result is not None
    assert result.forget


def test_tokens_are_made_again_to_the_bit() -> None:
    world = World()
    records = [r for record in world.stream() for r in world.send(record)]
    for record in records:
        held = world.store.get(record.block.embeddings)
        assert held is not None
        assert np.array_equal(world.handler.materialize(record.block.embeddings, record), held)
    other = TokensRecord.FromString(records[0].SerializeToString())
    other.block.model_digest = "m1"
    with pytest.raises(LineageBrokenError, match="m1"):
        world.handler.materialize(other.block.embeddings, other)
    world.topic.records.clear()
    with pytest.raises(LineageBrokenError, match="no offset"):
        world.handler.materialize(records[0].block.embeddings, records[0])


def test_qwen_takes_pairs_of_frames_and_stores_deepstack_beside() -> None:
    assert SIZE["qwen3_vl"] == 128
    world = World("qwen3_vl")
    records = world.send(world.frames([0, 1, 2, 3, 4], 0, 2.5))
    records += world.send(world.event(StreamEvent.KIND_GAP, 2.5))
    first, last = records[0].block, records[1].block
    assert [list(p.frames) for p in first.patches] == [[0, 1], [2, 3]]
    assert [list(p.frames) for p in last.patches] == [[0, 0]]
    kept = sum(p.kept for p in first.patches)
    assert first.embeddings.shape[0] == kept
    assert list(first.deepstack.shape)[1:] == list(first.embeddings.shape)
    deep = world.store.get(first.deepstack)
    assert deep is not None
    assert np.array_equal(world.handler.materialize(first.deepstack, records[0]), deep)


def test_policies_come_from_the_settings() -> None:
    gop = World(anchors=Anchors.GOP)
    block = gop.send(gop.frames([0, 1], 0, 1))
    block = gop.send(gop.frames([2, 3], 1, 2))[0].block
    assert [p.anchor for p in block.patches] == [True, False, True, False]
    dense = World(prune=False)
    assert all(p.kept == 16 for p in dense.send(dense.frames([0, 1, 2, 3], 0, 2))[0].block.patches)
    digests = {w.handler.config_digest for w in (World(), World(tau=1.0), World(alpha=0.1), gop, dense)}
    assert len(digests) == 5


def test_records_that_contradict_themselves_are_refused() -> None:
    world = World()
    wrong = world.frames([0, 1], 0, 1)
    wrong.segment.picture.width = 448
    with pytest.raises(BadRecordError, match="LOOKOUT_INPUT_WIDTH=112"):
        world.send(wrong)
    for spoil in ("motion", "order", "shape"):
        bad = world.frames([0, 1], 0, 1)
        if spoil == "motion":
            bad.segment.frames[1].motion = b"12"
        elif spoil == "order":
            bad.segment.frames[1].sample = 0
        else:
            bad.segment.pixels.shape[0] = 7
        with pytest.raises(BadRecordError, match="bad-frames"):
            world.send(bad)
    weighing = World(alpha=0.1)
    with pytest.raises(BadRecordError, match="LOOKOUT_ALPHA"):
        weighing.send(weighing.frames([0, 1], 0, 1))
    stranger = world.frames([0], 0, 1)
    stranger.camera = "door"
    with pytest.raises(BadRecordError, match="another key"):
        world.send(stranger)
    with pytest.raises(BadRecordError, match="bad-frames"):
        world.handler.handle(world.state, Record(FRAMES.name, 0, 0, "yard", b"\xff\xff\xff"))
    assert indices(world.send(world.frames([0, 1, 2, 3], 0, 2))) == [0]


def test_frames_of_several_cameras_share_a_batch() -> None:
    tower = encoder("internvl").tower
    shared = Encoder(tower, 64)
    frames = [[FrameInput(picture(n, 112, 112)[None], np.ones((4, 4), bool))] for n in range(6)]
    try:
        alone = [shared.encode(each).tokens for each in frames]
        together = shared.encode([frame for each in frames for frame in each]).tokens
        assert np.allclose(np.concatenate(alone), together, atol=1e-5)
    finally:
        shared.close()
    with pytest.raises(RuntimeError, match="closed"):
        shared.encode(frames[0])


@pytest.mark.parametrize("family", ["internvl", "qwen2_5_vl"])
def test_a_block_says_how_bright_the_patches_of_its_anchor_were(family: str) -> None:
    world = World(family)
    first, *_ = (record for segment in world.stream() for record in world.send(segment))
    grid, [anchor] = world.grid, [patch for patch in first.block.patches if patch.anchor]
    told = np.frombuffer(first.block.anchor_luma, np.uint8).reshape(-1, grid.rows, grid.cols)
    assert len(told) == len(set(anchor.frames)) == grid.temporal
    for frame, seen in zip(anchor.frames, told, strict=True):
        grey = picture(frame, grid.height, grid.width) @ np.array([0.299, 0.587, 0.114])
        wanted = grey.reshape(grid.rows, grid.patch, grid.cols, grid.patch).mean((1, 3))
        assert np.abs(seen - wanted).max() < 1.5
