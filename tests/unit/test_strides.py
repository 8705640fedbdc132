"""Sampled frames become encoded strides: the same in one batch as stride by stride, holes and all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookout.codec import Basis
from lookout.evaluation.chain import ClipFrames, stride_blocks
from lookout.families import load_tower
from lookout.pruning import PrunePolicy, Sample
from lookout.strides import StrideFrame, encode_strides, strides_of
from lookout.vision import Tower
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


def test_a_batch_of_strides_equals_stride_by_stride(tower: Tower) -> None:
    strides = [members for _, members in strides_of(frames(tower, list(range(11))), 4)]
    together = encode_strides(strides, tower, PrunePolicy(), STEP_US)
    carry = None
    for members, batched in zip(strides, together.strides, strict=True):
        alone = encode_strides([members], tower, PrunePolicy(), STEP_US, carry)
        carry = alone.carry
        for one, other in zip(alone.strides[0], batched, strict=True):
            assert np.array_equal(one.keep, other.keep)
            assert (one.slot_us, one.label_us) == (other.slot_us, other.label_us)
            torch.testing.assert_close(one.tokens, other.tokens, atol=1e-5, rtol=1e-5)
    assert together.inputs
    assert any(not frame.keep.all() for stride in together.strides for frame in stride)


def test_strides_lie_on_the_grid_whatever_is_missing(tower: Tower) -> None:
    found = [(i, [each.slot for each in members]) for i, members in strides_of(frames(tower, [0, 2, 9]), 4)]
    assert found == [(0, [0, 2]), (2, [9])]


@pytest.mark.parametrize(("tail", "filled"), [(True, [True, False, True]), (False, [True])])
def test_a_stride_without_a_frame_is_an_empty_block(tower: Tower, tail: bool, filled: list[bool]) -> None:
    clip = ClipFrames(frames(tower, [0, 1, 2, 3, 8, 9]), STEP_US)
    blocks = stride_blocks("clip/0", clip, tower, PrunePolicy(), 4, tail=tail)
    assert [bool(block.frames) for block in blocks] == filled
    assert [block.index for block in blocks] == list(range(len(filled)))
