"""Keep masks: anchors, accumulation, completion, damaged frames, carry-over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import ndimage

from lookout.pruning import (
    Accumulation,
    Anchors,
    Carry,
    Change,
    PatchGrid,
    PrunePolicy,
    Sample,
    bilinear_taps,
    complete,
    pack_mask,
    patch_difference,
    prune_block,
    spread,
    temporal_pairs,
    unpack_mask,
)
from lookout.video.motion import Basis

GRID = PatchGrid.merged(4, 4, 4, 2)
PAIRS = PatchGrid.merged(4, 4, 4, 2, temporal=2)
ODD = PatchGrid.pooled(27, 27, 2, 14, 14)
POLICY = PrunePolicy(change=Change.VECTORS, tau=1.0, luma_tau=6.0, accumulation=Accumulation.SINCE_ANCHOR)
GREY = np.full((16, 16, 3), 100, np.uint8)

masks = st.integers(0, 2**16 - 1).map(lambda n: unpack_mask(n.to_bytes(2, "little"), 4, 4))


def moved(dynamic: np.ndarray, **more: object) -> Sample:
    """A frame whose dynamic patches moved by 2 pixels."""
    return Sample(GREY, Basis.VECTORS, np.where(dynamic, 2, 0).astype(np.float16), **more)  # type: ignore[arg-type]


def key(picture: np.ndarray = GREY, **more: object) -> Sample:
    """An I-frame."""
    return Sample(picture, Basis.LUMA, intra=True, **more)  # type: ignore[arg-type]


def bright(patches: list[tuple[int, int]]) -> np.ndarray:
    """The grey picture with some patches changed."""
    out = GREY.copy()
    for r, c in patches:
        out[r * 4 : r * 4 + 4, c * 4 : c * 4 + 4] = 200
    return out


@given(dynamic=st.lists(masks, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_group_that_changed_is_kept_until_the_next_anchor(dynamic: list[np.ndarray]) -> None:
    samples = [key(), *(moved(d) for d in dynamic)]
    kept, _ = prune_block(samples, GRID, POLICY)
    assert kept[0].anchor
    assert kept[0].keep.all()
    seen = np.zeros((4, 4), bool)
    for mask, d in zip(kept[1:], dynamic, strict=True):
        seen |= d
        assert not mask.anchor
        assert np.array_equal(mask.keep, complete(seen, GRID))  # since-anchor: grows, never forgets
    own, _ = prune_block(samples, GRID, replace(POLICY, accumulation=Accumulation.SINCE_ENCODED))
    for mask, d in zip(own[1:], dynamic, strict=True):
        assert np.array_equal(mask.keep, complete(d, GRID))  # since-encoded: what moved now


def test_small_motion_adds_up_until_it_is_encoded() -> None:
    creep = Sample(GREY, Basis.VECTORS, np.full((4, 4), 0.4, np.float16))
    policy = replace(POLICY, accumulation=Accumulation.SINCE_ENCODED)
    kept, _ = prune_block([key(), *[creep] * 6], GRID, policy)
    assert [m.kept for m in kept] == [4, 0, 0, 4, 0, 0, 4]


@given(dynamic=st.lists(masks, min_size=3, max_size=3))
@settings(max_examples=20, deadline=None)
def test_pairs_take_the_union_of_their_frames(dynamic: list[np.ndarray]) -> None:
    still = np.zeros((4, 4), bool)
    kept, _ = prune_block([key(), moved(still), *(moved(d) for d in dynamic)], PAIRS, POLICY)
    assert [m.frames for m in kept] == [(0, 1), (2, 3), (4, 4)]
    assert np.array_equal(kept[1].keep, complete(dynamic[0] | dynamic[1], PAIRS))
    assert np.array_equal(kept[2].keep, complete(dynamic[0] | dynamic[1] | dynamic[2], PAIRS))


def test_everything_dynamic_keeps_everything() -> None:
    whole = np.ones((4, 4), bool)
    for accumulation in Accumulation:
        kept, _ = prune_block(
            [key(), moved(whole), moved(whole)], GRID, replace(POLICY, accumulation=accumulation)
        )
        assert all(m.keep.all() for m in kept)
    kept, _ = prune_block([key(), moved(~whole)], GRID, replace(POLICY, everything=True))
    assert kept[1].keep.all()
    assert not kept[1].anchor


def test_new_content_is_dynamic_at_any_threshold_and_nothing_moves_at_zero_motion() -> None:
    v = np.zeros((4, 4), np.float16)
    v[0, 0] = np.inf
    kept, _ = prune_block([key(), Sample(GREY, Basis.VECTORS, v)], GRID, replace(POLICY, tau=1e9))
    assert kept[1].keep.tolist() == [[True, False], [False, False]]
    kept, _ = prune_block([key(), moved(np.zeros((4, 4), bool))], GRID, replace(POLICY, tau=0.0))
    assert kept[1].kept == 0


def test_residual_counts_with_alpha_only() -> None:
    still = np.zeros((4, 4), np.float16)
    r = still.copy()
    r[3, 3] = 10
    sample = Sample(GREY, Basis.VECTORS, still, r)
    assert prune_block([key(), sample], GRID, POLICY)[0][1].kept == 0
    kept, _ = prune_block([key(), sample], GRID, replace(POLICY, alpha=0.2))
    assert kept[1].keep.tolist() == [[False, False], [False, True]]


def test_anchors_follow_the_stride_or_every_keyframe() -> None:
    still = moved(np.zeros((4, 4), bool))
    samples = [still, key(), still, key(), still]
    stride, _ = prune_block(samples, GRID, POLICY)
    gop, _ = prune_block(samples, GRID, replace(POLICY, anchors=Anchors.GOP))
    assert [m.anchor for m in stride] == [True, False, False, False, False]
    assert [m.anchor for m in gop] == [True, True, False, True, False]


def test_anchors_of_a_block_are_as_near_as_wanted_and_a_damaged_frame_puts_one_off() -> None:
    still = np.zeros((4, 4), bool)
    samples = [key(), *[moved(still)] * 7, moved(still, corrupt=True), *[moved(still)] * 10]
    near, _ = prune_block(samples, GRID, replace(POLICY, anchor_samples=8))
    assert [i for i, mask in enumerate(near) if mask.anchor] == [0, 9, 17]
    pairs, _ = prune_block([key(), *[moved(still)] * 15], PAIRS, replace(POLICY, anchor_samples=8))
    assert [mask.frames[0] for mask in pairs if mask.anchor] == [0, 8]
    odd, _ = prune_block([key(), *[moved(still)] * 15], PAIRS, replace(POLICY, anchor_samples=5))
    assert [mask.frames[0] for mask in odd if mask.anchor] == [0, 6, 12]
    far, _ = prune_block(samples, GRID, replace(POLICY, anchor_samples=100))
    assert [i for i, mask in enumerate(far) if mask.anchor] == [0]
    with pytest.raises(ValueError, match="anchor_samples=0 must be at least 1"):
        replace(POLICY, anchor_samples=0)


@given(
    dynamic=st.lists(masks, min_size=2, max_size=12),
    limit=st.integers(1, 6),
    accumulation=st.sampled_from(Accumulation),
    change=st.sampled_from(Change),
)
@settings(max_examples=60, deadline=None)
def test_a_block_with_near_anchors_is_as_many_blocks_of_its_parts(
    dynamic: list[np.ndarray], limit: int, accumulation: Accumulation, change: Change
) -> None:
    """An anchor in the middle of a block does all that the first one of a block does."""
    policy = replace(POLICY, accumulation=accumulation, change=change)
    samples = [replace(moved(d), pixels=np.where(spread_pixels(d), 200, GREY)) for d in dynamic]
    whole, _ = prune_block(samples, GRID, replace(policy, anchor_samples=limit))
    carry, parts = None, []
    for first in range(0, len(samples), limit):
        masks_of_part, carry = prune_block(samples[first : first + limit], GRID, policy, carry)
        parts += masks_of_part
    assert [mask.anchor for mask in whole] == [mask.anchor for mask in parts]
    for mask, part in zip(whole, parts, strict=True):
        assert np.array_equal(mask.keep, part.keep)


def spread_pixels(patches: np.ndarray) -> np.ndarray:
    """Patches as an area of the picture: bool [16, 16, 1]."""
    return np.repeat(np.repeat(patches, 4, axis=0), 4, axis=1)[..., None]


def test_an_anchor_forgets_the_active_set() -> None:
    corner = np.zeros((4, 4), bool)
    corner[0, 0] = True
    samples = [key(), moved(corner), key(), moved(~corner & corner)]
    gop, carry = prune_block(samples, GRID, replace(POLICY, anchors=Anchors.GOP))
    assert [m.kept for m in gop] == [4, 1, 4, 0]
    assert carry is not None
    assert not carry.active.any()


def test_without_vectors_luma_is_compared_with_the_last_kept_content() -> None:
    one, two = bright([(0, 0)]), bright([(0, 0), (3, 3)])
    samples = [key(), key(one), key(two), key(two)]
    since_anchor, _ = prune_block(samples, GRID, POLICY)
    assert [m.kept for m in since_anchor] == [4, 1, 2, 2]
    policy = replace(POLICY, accumulation=Accumulation.SINCE_ENCODED)
    since_encoded, _ = prune_block(samples, GRID, policy)
    assert [m.kept for m in since_encoded] == [4, 1, 1, 0]


def test_an_i_frame_that_is_no_anchor_unites_luma_with_the_active_set() -> None:
    corner = np.zeros((4, 4), bool)
    corner[0, 3] = True
    kept, _ = prune_block([key(), moved(corner), key(bright([(3, 0)]))], GRID, POLICY)
    assert kept[2].keep.tolist() == [[False, True], [True, False]]


def test_damaged_frames_are_never_anchors() -> None:
    kept, carry = prune_block([key(corrupt=True), moved(np.zeros((4, 4), bool))], GRID, POLICY)
    assert [m.anchor for m in kept] == [False, True]
    assert kept[0].keep.all()  # nothing to lean on
    again, _ = prune_block([key(corrupt=True), key()], GRID, POLICY, carry)
    assert [m.anchor for m in again] == [False, True]
    assert again[0].kept == 0  # equal to what the block before left
    pair, _ = prune_block([key(), key(corrupt=True), key()], PAIRS, POLICY)
    assert [m.anchor for m in pair] == [False, True]
    nothing, _ = prune_block([key(corrupt=True)], GRID, replace(POLICY, anchors=Anchors.GOP))
    assert not nothing[0].anchor


def test_no_frames_give_no_masks_and_leave_the_carry_over_alone() -> None:
    _, carry = prune_block([key()], GRID, POLICY)
    masks_, after = prune_block([], GRID, POLICY, carry)
    assert masks_ == []
    assert carry is not None
    assert after is not None
    assert after.pack() == carry.pack()


@given(active=masks, seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_carry_over_survives_its_bytes(active: np.ndarray, seed: int) -> None:
    carry = Carry(active, np.random.default_rng(seed).integers(0, 255, (4, 4), np.uint8))
    back = Carry.unpack(carry.pack())
    assert back is not None
    assert np.array_equal(back.active, carry.active)
    assert np.array_equal(back.content, carry.content)


def test_carry_over_is_small_and_checked() -> None:
    content = np.random.default_rng(0).integers(0, 255, (28, 28), np.uint8)
    assert len(Carry(content > 100, content).pack()) < 1024
    assert Carry.unpack(b"") is None
    for damage in (b"\0", b"\1\0\0\0\0junk", Carry(content > 1, content).pack()[:-9]):
        with pytest.raises(ValueError, match="carry-over"):
            Carry.unpack(damage)
    other, _ = prune_block([key(corrupt=True)], GRID, POLICY, Carry(content > 1, content))
    assert other[0].keep.all()  # of another grid: not used


@given(mask=masks, more=masks)
@settings(max_examples=40, deadline=None)
def test_completion_is_monotone_and_covers_its_patches(mask: np.ndarray, more: np.ndarray) -> None:
    groups, wider = complete(mask, GRID), complete(mask | more, GRID)
    assert (wider >= groups).all()
    patches = spread(groups, GRID)
    assert (patches >= mask).all()
    assert np.array_equal(
        complete(patches, GRID), groups
    )  # groups do not overlap here: complete is a closure


@given(seed=st.integers(0, 1000), share=st.floats(0, 0.1))
@settings(max_examples=20, deadline=None)
def test_shared_taps_keep_every_token_they_feed(seed: int, share: float) -> None:
    dynamic = np.random.default_rng(seed).random((27, 27)) < share
    groups = complete(dynamic, ODD)
    for r, rows in enumerate(ODD.row_taps):
        for c, cols in enumerate(ODD.col_taps):
            assert groups[r, c] == dynamic[np.ix_(rows, cols)].any()
    assert (spread(groups, ODD) >= dynamic).all()


@pytest.mark.parametrize(("size", "out"), [(27, 14), (24, 12), (7, 3), (5, 5)])
def test_bilinear_taps_are_those_of_the_model(size: int, out: int) -> None:
    weights = torch.nn.functional.interpolate(
        torch.eye(size)[None, :, None, :], size=(1, out), mode="bilinear", align_corners=False
    )[0, :, 0].T
    assert [tuple(row.nonzero().ravel().tolist()) for row in weights > 1e-6] == list(bilinear_taps(size, out))


def test_a_mask_survives_packing_and_wrong_sizes_are_refused() -> None:
    mask = np.arange(15).reshape(3, 5) % 3 == 0
    assert np.array_equal(unpack_mask(pack_mask(mask), 3, 5), mask)
    assert pack_mask(np.array([[True, False, False, True]])) == b"\x09"
    with pytest.raises(ValueError, match="3x5"):
        unpack_mask(b"\0", 3, 5)


def test_samples_are_paired_and_a_lone_last_one_is_repeated() -> None:
    assert temporal_pairs(3, 1) == [(0,), (1,), (2,)]
    assert temporal_pairs(5, 2) == [(0, 1), (2, 3), (4, 4)]
    assert temporal_pairs(0, 2) == []


def test_patch_difference_sees_a_quarter_and_ignores_single_pixels() -> None:
    grid = PatchGrid.merged(2, 2, 8, 1)
    a = np.full((16, 16), 100, np.uint8)
    b = a.copy()
    b[0:4, 0:4] = 140
    gap = patch_difference(a, b, grid)
    assert gap[0, 0] > 20
    assert gap[1, 1] == 0
    with pytest.raises(ValueError, match="16"):
        patch_difference(a[:8], b[:8], grid)


@pytest.mark.parametrize(("rows", "cols", "patch"), [(8, 8, 14), (3, 5, 7), (4, 6, 1), (2, 3, 3), (2, 2, 16)])
def test_patch_difference_is_the_most_different_quarter_of_the_smoothed_change(
    rows: int, cols: int, patch: int
) -> None:
    draw = np.random.default_rng(rows)
    a, b = (draw.integers(0, 256, (rows * patch + 3, cols * patch + 1), np.uint8) for _ in range(2))
    smooth = ndimage.uniform_filter(a.astype(np.float64) - b, size=3, mode="nearest")
    half = max(1, patch // 2)
    parts = [slice(0, half), *([slice(half, patch)] if patch > 1 else [])]
    want = [
        [
            max(
                np.abs(smooth[r * patch :, c * patch :][:patch, :patch][down, across]).mean()
                for down in parts
                for across in parts
            )
            for c in range(cols)
        ]
        for r in range(rows)
    ]
    got = patch_difference(a, b, PatchGrid.merged(rows, cols, patch, 1))
    assert got == pytest.approx(np.array(want), abs=1e-4)


def test_wrong_grids_are_refused() -> None:
    with pytest.raises(ValueError, match="patch grid"):
        prune_block([key(), Sample(GREY, Basis.VECTORS, np.zeros((3, 3), np.float16))], GRID, POLICY)
    with pytest.raises(ValueError, match="no motion grid"):
        prune_block([key(), Sample(GREY, Basis.VECTORS)], GRID, POLICY)
    with pytest.raises(ValueError, match="cannot be divided into groups"):
        PatchGrid.merged(5, 4, 14, 2)
    with pytest.raises(ValueError, match="negative"):
        PrunePolicy(tau=-1)
