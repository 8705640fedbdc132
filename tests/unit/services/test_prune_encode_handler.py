"""Prune-encode's blocks: holes, gaps, lost pixels, tokens made again, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from lookout.errors import BadRecordError, TransientError
from lookout.past.erasures import Fence
from lookout.pruning import Anchors
from lookout.runtime.store import (
    LineageBrokenError,
    StoreFullError,
)
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import (
    CAUSE_LATE,
    CAUSE_QUOTA,
    CAUSE_UNSPECIFIED,
    Sampling,
    StreamEvent,
    TensorRef,
)
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.wire import FRAMES
from tests.changed_settings import store_settings
from tests.tiny_models import SIZE
from tests.unit.services.prune_encode_case import VECTORS, WALL, World, indices


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


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{"pruning": "default"}, {"pruning": "codecsight"}])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_between_any_two_records_changes_no_byte(policy: dict[str, object], seed: int) -> None:
    """Of masks, reasons and checkpoints; also where a segment ends with its block."""
    records = eventful(seed)
    undisturbed = World(**policy)
    undisturbed.pixels.noise = 6.0
    expected = [written(undisturbed, record) for record in records]
    assert any(outputs and checkpoint.prune.active for outputs, checkpoint in expected)
    for killed in range(len(records)):
        world = World(**policy)
        world.pixels.noise = 6.0
        world.topic.records = dict(list(undisturbed.topic.records.items())[: killed + 1])
        world.checkpoint = expected[killed][1]
        # After three records every block that was open at the kill is closed.
        for at in range(killed + 1, min(killed + 4, len(records))):
            if at == killed + 1:
                world.takeover()
            assert written(world, records[at]) == expected[at], f"record {at} after a kill at {killed}"


def written(world: World, record: FramesRecord) -> tuple[list[bytes], Checkpoint]:
    """What one record gives: outputs as bytes, and the checkpoint."""
    outputs = [output.SerializeToString(deterministic=True) for output in world.send(record)]
    return outputs, Checkpoint.FromString(world.checkpoint.SerializeToString())


def eventful(seed: int) -> list[FramesRecord]:
    """Two epochs of segments of 1, 2 or 4 samples, so that many end with their block; some begin with a
    damaged frame, and between some the stream is late, over its quota or labelled again."""
    chance = np.random.default_rng(seed)
    world, records = World(), []
    for epoch in (1, 2):
        sample = 0
        while sample < 20:
            count = int(chance.choice([1, 2, 4]))
            if chance.random() < 0.2:
                sample += count
                kind = chance.choice([StreamEvent.KIND_SKIPPED, StreamEvent.KIND_LATE])
                records.append(world.event(kind, sample / 2, epoch))
                records[-1].event.reason = "quota: " * int(chance.choice([0, 1, 60]))
            samples = range(sample, sample + count)
            damaged = [sample] if chance.random() < 0.4 else []
            segment = world.frames(samples, sample / 2, (sample + count) / 2, epoch=epoch, corrupt=damaged)
            segment.labels.tenant = str(chance.choice(["acme", "globex"]))
            records.append(segment)
            sample += count
        records.append(world.event(StreamEvent.KIND_GAP, sample / 2, epoch))
    return records


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


def test_blocks_and_events_carry_the_labels_of_the_newest_record() -> None:
    world = World()
    tenants: list[str] = []
    for message, tenant in (
        (world.frames([0, 1, 2], 0, 1.5), "acme"),
        (world.frames([3, 4], 1.5, 2.5), "acme"),
        (world.event(StreamEvent.KIND_GAP, 2.5), "acme"),
        (world.frames([0, 1, 2, 3], 0, 2, epoch=2), "globex"),
        (world.event(StreamEvent.KIND_GAP, 2, epoch=2), ""),
    ):
        message.labels.tenant = tenant
        tenants += [record.labels.tenant for record in world.send(message)]
        world.takeover()
    assert tenants == ["acme", "acme", "acme", "globex", ""]


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
    before = world.state.unit
    world.pixels.away = True
    message = world.frames([2, 3], 1, 2)
    with pytest.raises(TransientError):
        world.send(message)
    assert world.state.unit == before
    world.pixels.away = False
    world.pixels.lost.add("pixels/1/0")
    block = world.send(message)[0].block
    assert [f.sample for f in block.frames] == [2, 3]


def test_pixels_that_stay_away_have_a_deadline_and_an_outcome() -> None:
    world = World()
    world.send(world.frames([0, 1], 0, 1))
    world.pixels.away = True
    message = world.frames([2, 3], 1, 2)
    for seconds in (0.0, 60.0, 119.0):
        world.now = seconds
        with pytest.raises(TransientError):
            world.send(message)
    world.now = 120.0
    block = world.send(message)[0].block
    assert not block.frames
    assert block.missing.startswith("pixels were not available for 120 s")
    world.pixels.away = False
    after = world.send(world.frames([4, 5, 6, 7], 2, 4))[0].block
    assert (len(after.frames), after.missing) == (4, "")


def test_pixels_that_decode_cannot_make_cost_a_camera_its_budget() -> None:
    """Decode answers: the partition waits for 5 s a minute, not for 120 s a block."""
    world = World()
    world.pixels.unmade = True
    seconds, blocks = 0.0, []
    for start in range(0, 20, 4):
        message = world.frames(list(range(start, start + 4)), start / 2, start / 2 + 2)
        while True:
            try:
                blocks += [record.block for record in world.send(message)]
                break
            except TransientError:
                world.now += 1.0
                seconds += 1.0
    assert [len(block.frames) for block in blocks] == [0] * 5
    assert blocks[0].missing.startswith("pixels could not be computed")
    assert seconds <= 6.0
    world.now += 60.0  # the budget is whole again
    with pytest.raises(TransientError):
        world.send(world.frames([20, 21, 22, 23], 10, 12))


def test_a_camera_whose_tokens_nobody_reads_waits_and_then_has_an_outcome() -> None:
    world = World(store=store_settings(camera_bytes=20_000, camera_wait_s=60.0))  # a block's tokens: 10 752
    [first] = world.send(world.frames([0, 1, 2, 3], 0, 2))
    message = world.frames([4, 5, 6, 7], 2, 4)
    for seconds in (0.0, 59.0):
        world.now = seconds
        with pytest.raises(TransientError, match="of camera yard are unread"):
            world.send(message)
    world.now = 120.0
    block = world.send(message)[0].block
    assert (block.index, len(block.frames), len(block.patches)) == (1, 0, 0)
    assert block.missing.startswith("quota: ")
    assert not block.embeddings.id
    assert world.send(world.frames([8, 9, 10, 11], 4, 6))[0].block.missing.startswith("quota: ")
    assert world.counts["over_quota"] == 2
    world.store.release([first.block.embeddings])
    after = world.send(world.frames([12, 13, 14, 15], 6, 8))[0].block
    assert (len(after.frames), after.missing) == (4, "")
    with pytest.raises(TransientError):
        world.send(world.frames([16, 17, 18, 19], 8, 10))  # the next wait begins again


def test_one_record_with_more_tokens_than_the_quota_ends() -> None:
    """Its own first blocks hold the room that its last ones wait for."""
    world = World(store=store_settings(camera_bytes=20_000, camera_wait_s=60.0))
    message = world.frames(list(range(12)), 0, 6)
    for seconds in (0.0, 30.0):
        world.now = seconds
        with pytest.raises(TransientError):
            world.send(message)
        assert world.store.stats().pinned_bytes == 0
    world.now = 60.0
    records = world.send(message)
    assert [len(r.block.frames) for r in records] == [4, 0, 0]
    assert world.store.stats().pinned_bytes == records[0].block.embeddings.length


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
    assert {record.block.missing_cause for record in records} == {CAUSE_QUOTA}
    assert not world.send(world.frames([12, 13, 14, 15], 6, 8))[0].block.missing
    assert not world.send(world.frames([16, 17, 19], 8, 10))[0].block.missing


def test_the_wall_clock_of_a_block_is_that_of_its_newest_frames() -> None:
    world = World()
    world.send(world.frames([0, 1], 0, 1))
    later = world.frames([2, 3, 4, 5], 1, 3)
    later.wall_offset_us = WALL + 7
    assert world.send(later)[0].wall_offset_us == WALL + 7


def test_tokens_are_made_again_to_the_bit() -> None:
    world = World()
    records = [r for record in world.stream() for r in world.send(record)]
    for record in records:
        held = world.store.get(record.block.embeddings)
        assert held is not None
        assert np.array_equal(world.handler.closer.materialize(record.block.embeddings, record), held)
    stolen = TokensRecord.FromString(records[0].SerializeToString())
    stolen.camera = "lobby"
    with pytest.raises(LineageBrokenError, match="another camera"):
        world.handler.closer.materialize(stolen.block.embeddings, stolen)
    stolen.block.embeddings.camera = "lobby"
    with pytest.raises(LineageBrokenError, match="another camera"):
        world.handler.closer.materialize(stolen.block.embeddings, stolen)
    other = TokensRecord.FromString(records[0].SerializeToString())
    other.block.model_digest = "m1"
    with pytest.raises(LineageBrokenError, match="m1"):
        world.handler.closer.materialize(other.block.embeddings, other)
    at_us = records[0].wall_offset_us + records[0].block.start_us
    fence = Fence([Erasure(id="e-1", camera="yard", begin_us=at_us, end_us=at_us + 1)])
    with pytest.raises(LineageBrokenError, match="erased by erasure e-1"):
        replace(world.handler.closer, fence=fence).materialize(records[0].block.embeddings, records[0])
    world.topic.records.clear()
    with pytest.raises(LineageBrokenError, match="no offset"):
        world.handler.closer.materialize(records[0].block.embeddings, records[0])


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
    assert np.array_equal(world.handler.closer.materialize(first.deepstack, records[0]), deep)


@pytest.mark.timeout(60)
def test_a_record_that_covers_hundreds_of_years_takes_no_time() -> None:
    """The hole is told by a window of empty blocks, as any other."""
    world = World()
    record = world.frames([0, 1, 2, 3], 0, 2)
    record.segment.end_us = 1 << 53
    blocks = [each.block for each in world.send(record)]
    assert [(block.index, len(block.frames)) for block in blocks] == [(0, 4), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("spoil", ["ends before it starts", "a sample after its end"])
def test_a_record_whose_times_contradict_is_refused(spoil: str) -> None:
    world = World()
    record = world.frames([0, 1, 2, 3], 0, 2)
    if spoil == "ends before it starts":
        record.segment.end_us = -1
    else:
        record.segment.frames[3].sample = 1 << 52
    with pytest.raises(BadRecordError, match="bad-frames"):
        world.send(record)
    assert len(world.send(world.frames([0, 1, 2, 3], 0, 2))) == 1


def test_policies_come_from_the_settings() -> None:
    gop = World(policy=replace(VECTORS, anchors=Anchors.GOP))
    block = gop.send(gop.frames([0, 1], 0, 1))
    block = gop.send(gop.frames([2, 3], 1, 2))[0].block
    assert [p.anchor for p in block.patches] == [True, False, True, False]
    dense = World(prune=False)
    assert all(p.kept == 16 for p in dense.send(dense.frames([0, 1, 2, 3], 0, 2))[0].block.patches)
    digests = {
        w.handler.config_digest
        for w in (World(), World(pruning="codecsight"), World(anchor_samples=2), gop, dense)
    }
    assert len(digests) == 5


def test_holes_of_a_camera_whose_segments_come_late_say_so() -> None:
    """Segments of a block in swapped pairs: 1, 0, 3, 2. The first hole cannot know why; the next ones do."""
    world = World()
    world.send(world.frames(range(0, 4), 0, 2))
    [hole, _] = world.send(world.frames(range(8, 12), 4, 6))
    assert (hole.block.index, hole.block.missing_cause) == (1, CAUSE_UNSPECIFIED)
    world.send(world.event(StreamEvent.KIND_LATE, 2))
    world.takeover()
    blocks = world.send(world.frames(range(16, 20), 8, 10))
    assert [block.block.index for block in blocks] == [3, 4]
    assert blocks[0].block.missing_cause == CAUSE_LATE
    assert blocks[0].block.missing.startswith("late: ")
    assert not blocks[1].block.missing
    far = world.send(world.frames(range(60, 64), 30, 32))
    assert far[-2].block.missing_cause == CAUSE_UNSPECIFIED, "longer ago than a window"


def canary(share: float) -> World:
    """A world whose handler is a canary's; the setting stands in the environment of a process."""
    world = World()
    world.handler._settings = world.settings.model_copy(update={"canary": share})
    return world


def test_a_canary_begins_within_an_epoch_with_the_first_block_that_it_sees_whole() -> None:
    world = canary(1.0)
    batches = [
        world.send(world.frames(range(10, 15), 5.0, 7.5)),
        world.send(world.frames(range(15, 24), 7.5, 12.0)),
    ]
    assert [indices(batch) for batch in batches] == [[], [3, 4, 5]]
    assert [frame.sample for frame in batches[1][0].block.frames] == [12, 13, 14, 15]


def test_a_canary_leaves_the_other_cameras_alone() -> None:
    world = canary(1e-9)
    assert [world.send(record) for record in world.stream()] == [[], [], []]
    assert not world.checkpoint.HasField("prune")


def test_a_larger_share_keeps_the_cameras_of_a_smaller_one() -> None:
    cameras = [f"cam-{number}" for number in range(2000)]
    shares = [0.1, 0.25, 0.5, 1.0]
    settings = [World().settings.model_copy(update={"canary": share}) for share in shares]
    tried = [{name for name in cameras if own.tries(name)} for own in settings]
    assert tried == sorted(tried, key=len)
    assert all(smaller < larger for smaller, larger in pairwise(tried))
    assert all(abs(len(found) / 2000 - share) < 0.04 for found, share in zip(tried, shares, strict=True))


def test_the_share_of_a_canary_is_refused_outside_of_its_environment() -> None:
    with pytest.raises(ValidationError, match="can be set only in the environment of the process"):
        World(canary=0.5)
