"""Stride blocks of frames records: when they close, their masks as facts, contradictions refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lookout.errors import BadRecordError
from lookout.models.vision import FrameInput
from lookout.pruning import unpack_mask
from lookout.runtime.worker import Record
from lookout.services.prune_encode.blocks import closed_before
from lookout.wire import FRAMES
from tests.unit.services.prune_encode_case import STEP, VECTORS, World, encoder, indices, picture


def test_a_block_closes_when_nothing_can_be_added() -> None:
    assert closed_before(2_000_000, STEP, 4) == 1
    assert closed_before(1_749_999, STEP, 4) == 0
    assert closed_before(1_750_000, STEP, 4) == 1  # the cell of sample 3 is over
    assert closed_before(0, STEP, 4) == 0


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
    weighing = World(policy=replace(VECTORS, alpha=0.1))
    with pytest.raises(BadRecordError, match="need residuals"):
        weighing.send(weighing.frames([0, 1], 0, 1))
    stranger = world.frames([0], 0, 1)
    stranger.camera = "door"
    with pytest.raises(BadRecordError, match="under the key"):
        world.send(stranger)
    with pytest.raises(BadRecordError, match="bad-frames"):
        world.handler.handle(world.state, Record(FRAMES.name, 0, 0, "yard", b"\xff\xff\xff"))
    assert indices(world.send(world.frames([0, 1, 2, 3], 0, 2))) == [0]


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
