"""Sampled frames become encoded strides: the same in one batch as stride by stride, holes and all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.floors import DissimilarTokens
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.pruning import PrunePolicy, Sample
from lookout.streams import StrideFrame, encode_strides, stream_blocks, strides_of
from lookout.video.motion import Basis
from tests import tiny_models

STEP_US = 500_000


@pytest.fixture(scope="module", params=["internvl", "qwen3_vl"])
def tower(request: pytest.FixtureRequest) -> Tower:
    return load_tower(tiny_models.checkpoint(request.param))


def frames(tower: Tower, slots: list[int]) -> list[StrideFrame]:
    """A bright square that moves over noise; the time of each frame is 40 ms past its grid point."""
    noise = np.random.default_rng(0).integers(0, 60, (tower.grid.height, tower.grid.width, 3), np.uint8)
    out = []
    for slot in slots:
        pixels = noise.copy()
        pixels[8 * (slot % 8) : 8 * (slot % 8) + 40, 20:60] = 240
        out.append(StrideFrame(Sample(pixels, Basis.LUMA), slot * STEP_US + 40_000, slot))
    return out


@pytest.mark.slow
def test_a_batch_of_strides_equals_stride_by_stride(tower: Tower) -> None:
    strides = [members for _, members in strides_of(frames(tower, list(range(11))), 4)]
    together = encode_strides(strides, tower, PrunePolicy(), STEP_US)
    carry = None
    for members, batched in zip(strides, together.strides, strict=True):
        alone = encode_strides([members], tower, PrunePolicy(), STEP_US, carry)
        carry = alone.carry
        for one, other in zip(alone.strides[0], batched, strict=True):
            assert np.array_equal(one.keep, other.keep)
            assert (one.slot_us, one.last_us) == (other.slot_us, other.last_us)
            torch.testing.assert_close(one.tokens, other.tokens, atol=1e-5, rtol=1e-5)
    assert together.inputs
    assert any(not frame.keep.all() for stride in together.strides for frame in stride)


def test_strides_lie_on_the_grid_whatever_is_missing(tower: Tower) -> None:
    found = [(i, [each.slot for each in members]) for i, members in strides_of(frames(tower, [0, 2, 9]), 4)]
    assert found == [(0, [0, 2]), (2, [9])]


@pytest.mark.parametrize(
    ("slots", "filled"),
    [
        ([0, 1, 2, 3, 8, 9], {0: True, 1: False, 2: True}),
        ([8, 40], {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 0, 10: 1}),
    ],
)
def test_a_hole_is_empty_blocks_but_no_more_than_a_window(
    tower: Tower, slots: list[int], filled: dict[int, bool]
) -> None:
    blocks = stream_blocks(
        "clip/0", frames(tower, slots), tower, PrunePolicy(), samples=4, step_us=STEP_US, window_blocks=3
    )
    assert {member.block.index: bool(member.block.frames) for member in blocks} == filled


@pytest.mark.slow
def test_tokens_dropped_after_the_tower_leave_those_of_the_whole_encoding(tower: Tower) -> None:
    members = frames(tower, list(range(8)))
    (whole,) = encode_strides([members], tower, PrunePolicy(everything=True), STEP_US).strides
    thinned = encode_strides([members], tower, DissimilarTokens(0.25), STEP_US)
    behind = 0
    for given, frame, full in zip(thinned.inputs, thinned.strides[0], whole, strict=True):
        assert given.keep.all(), "every patch is encoded"
        assert frame.keep.all() == frame.anchor
        torch.testing.assert_close(frame.tokens, full.tokens[torch.from_numpy(frame.keep.ravel())])
        if full.deepstack is not None:
            assert frame.deepstack is not None
            kept = torch.from_numpy(frame.keep.ravel())
            torch.testing.assert_close(frame.deepstack, full.deepstack[:, kept])
        behind += 0 if frame.anchor else frame.tokens.shape[0]
    assert behind == round(0.25 * (len(whole) - 1) * whole[0].keep.size)
    (block,) = stream_blocks(
        "s", members, tower, DissimilarTokens(0.25), samples=8, step_us=STEP_US, window_blocks=2
    )
    assert all(mask.all() for mask in block.encoded)
    assert not all(frame.keep.all() for frame in block.block.frames)
