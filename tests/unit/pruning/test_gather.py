"""Gathering rules against naive references, and what breaks a chain."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import ndimage

from lookout.pruning import GatherMethod, GatherSettings, MotionGather
from lookout.pruning.gather import largest3x3, median3x3
from lookout.video.motion import Basis, FrameInfo, Geometry, Motion, Picture, PredictionKind
from tests.unit.pruning.samples import Block, frame, prediction_blocks, tiling

WIDTH, HEIGHT = 64, 48
GEOMETRY = Geometry.fitted((WIDTH, HEIGHT), (WIDTH, HEIGHT))
VECTORS = st.tuples(st.integers(-20, 20), st.integers(-20, 20))


def gather(rule: GatherMethod, **more: object) -> MotionGather:
    """One started gather on patches of 8 pixels."""
    made = MotionGather(GatherSettings(6, 8, 8, rule, **more))  # type: ignore[arg-type]
    made.start(GEOMETRY)
    made.push(frame(0, Picture.I), None, None)
    assert sampled(made, frame(0, Picture.I)).basis is Basis.LUMA
    return made


def sampled(made: MotionGather, at: FrameInfo) -> Motion:
    """The motion at a sample, asked for at once."""
    made.sample(at)
    return made.motions()[-1]


def run(rule: GatherMethod, frames: list[tuple[Picture, list[Block]]], **more: object) -> Motion:
    """The motion after these inter frames."""
    made = gather(rule, **more)
    for i, (picture, blocks) in enumerate(frames, 1):
        made.push(frame(i, picture), prediction_blocks(blocks), None)
    return sampled(made, frame(len(frames)))


def blocks_of(grid: list[tuple[int, int] | None]) -> list[Block]:
    """One 16x16 block per macroblock of 64x48; None: intra, absent."""
    places = [(x, y) for y in range(0, HEIGHT, 16) for x in range(0, WIDTH, 16)]
    return [Block(x, y, 16, 16, *v) for (x, y), v in zip(places, grid, strict=True) if v is not None]


FRAMES = st.lists(st.lists(st.none() | VECTORS, min_size=12, max_size=12), min_size=1, max_size=5)


@pytest.mark.parametrize(("rule", "length"), [(GatherMethod.UNION, 2.5), (GatherMethod.UNION_CODED, 5.0)])
def test_lengths_are_of_the_models_input_or_of_the_coded_picture(rule: GatherMethod, length: float) -> None:
    made = MotionGather(GatherSettings(3, 4, 8, rule))
    made.start(Geometry.fitted((WIDTH, HEIGHT), (WIDTH // 2, HEIGHT // 2)))
    made.push(frame(0, Picture.I), None, None)
    sampled(made, frame(0, Picture.I))
    made.push(frame(1, Picture.P), prediction_blocks(blocks_of([(3, 4)] * 12)), None)
    got = sampled(made, frame(1)).v
    assert got is not None
    assert np.allclose(got, length)


@given(frames=FRAMES)
@settings(max_examples=40, deadline=None)
def test_union_is_the_largest_vector_of_any_frame(frames: list[list[tuple[int, int] | None]]) -> None:
    got = run(GatherMethod.UNION, [(Picture.P, blocks_of(f)) for f in frames]).v
    largest = [
        max(np.inf if v is None else np.hypot(*v) for v in place) for place in zip(*frames, strict=True)
    ]
    expected = np.repeat(np.repeat(np.array(largest).reshape(3, 4), 2, axis=0), 2, axis=1)
    assert got is not None
    assert np.allclose(got, expected.astype(np.float16), rtol=1e-3)


@given(frames=FRAMES)
@settings(max_examples=40, deadline=None)
def test_signed_sum_adds_filters_and_dilates(frames: list[list[tuple[int, int] | None]]) -> None:
    got = run(
        GatherMethod.SIGNED_SUM,
        [(Picture.P, blocks_of(f)) for f in frames],
        intra_share=0.0,
        intra_limit=1.0,
        cell=16,
    ).v
    total = np.array([[v or (0, 0) for v in f] for f in frames], np.float64).sum(0).reshape(3, 4, 2)
    intra = np.array([[v is None for v in f] for f in frames]).sum(0).reshape(3, 4)
    padded = np.pad(total, ((1, 1), (1, 1), (0, 0)), mode="edge")
    smooth = np.array(
        [[np.median(padded[r : r + 3, c : c + 3].reshape(9, 2), axis=0) for c in range(4)] for r in range(3)]
    )
    size = np.hypot(smooth[..., 0], smooth[..., 1])
    persistent = np.pad(intra >= min(2, len(frames)), 1, mode="edge")
    size[np.array([[persistent[r : r + 3, c : c + 3].sum() > 4 for c in range(4)] for r in range(3)])] = (
        np.inf
    )
    dilated = [[size[max(0, r - 1) : r + 2, max(0, c - 1) : c + 2].max() for c in range(4)] for r in range(3)]
    expected = np.repeat(np.repeat(np.array(dilated), 2, axis=0), 2, axis=1)
    assert got is not None
    assert np.allclose(got, expected.astype(np.float16), rtol=1e-3)


def test_noise_cancels_in_the_sum_and_adds_up_in_the_union() -> None:
    there, back = tiling(WIDTH, HEIGHT, 16, 2.0, 0.0), tiling(WIDTH, HEIGHT, 16, -2.0, 0.0)
    frames = [(Picture.P, there), (Picture.P, back)] * 3
    union, summed = run(GatherMethod.UNION, frames).v, run(GatherMethod.SIGNED_SUM, frames).v
    assert union is not None
    assert summed is not None
    assert (union == 2).all()
    assert (summed == 0).all()


def test_only_the_sampled_b_frame_counts_in_the_sum() -> None:
    p, b = tiling(WIDTH, HEIGHT, 16, 1.0, 0.0), tiling(WIDTH, HEIGHT, 16, 4.0, 0.0)
    future = tiling(WIDTH, HEIGHT, 16, 50.0, 0.0, source=1)
    passed = run(GatherMethod.SIGNED_SUM, [(Picture.B, b + future), (Picture.P, p)]).v
    sampled = run(GatherMethod.SIGNED_SUM, [(Picture.P, p), (Picture.B, b + future)]).v
    assert passed is not None
    assert sampled is not None
    assert (passed == 1).all()
    assert (sampled == 5).all()
    union = run(GatherMethod.UNION, [(Picture.B, b + future), (Picture.P, p)]).v
    assert union is not None
    assert (union == 50).all()


@pytest.mark.parametrize("rule", list(GatherMethod))
def test_explicit_intra_blocks_read_like_absent_ones(rule: GatherMethod) -> None:
    absent = tiling(WIDTH, HEIGHT, 16)[1:]
    explicit = [Block(0, 0, 16, 16, kind=PredictionKind.INTRA), *absent]
    frames = [[(Picture.P, blocks)] * 3 for blocks in (absent, explicit)]
    first, second = (run(rule, f).v for f in frames)
    assert first is not None
    assert second is not None
    assert np.isinf(first[:2, :2]).all()
    assert np.array_equal(first, second)


@pytest.mark.parametrize("rule", list(GatherMethod))
@pytest.mark.parametrize(
    ("breaker", "blocks"),
    [
        (frame(2, Picture.I), None),
        (frame(2, corrupt=True), tiling(WIDTH, HEIGHT, 16)),
        (frame(2, jump=True), tiling(WIDTH, HEIGHT, 16)),
        (frame(2), None),
    ],
)
def test_a_broken_chain_rests_on_luma_and_heals_at_the_next_sample(
    rule: GatherMethod, breaker: object, blocks: list[Block] | None
) -> None:
    made = gather(rule)
    still = prediction_blocks(tiling(WIDTH, HEIGHT, 16))
    made.push(frame(1), still, None)
    made.push(breaker, None if blocks is None else prediction_blocks(blocks), None)  # type: ignore[arg-type]
    made.push(frame(3), still, None)
    assert sampled(made, frame(3)) == Motion(Basis.LUMA)
    made.push(frame(4), still, None)
    healed = sampled(made, frame(4))
    assert healed.basis is Basis.VECTORS
    assert healed.v is not None
    assert not healed.v.any()


def test_where_most_is_intra_the_sum_rests_on_luma() -> None:
    """Noise makes cheap encoders code half of every picture as intra: that is no news about any place."""
    half = tiling(WIDTH, HEIGHT, 16)[::2]
    assert run(GatherMethod.SIGNED_SUM, [(Picture.P, half)] * 3) == Motion(Basis.LUMA)
    assert run(GatherMethod.UNION, [(Picture.P, half)] * 3).basis is Basis.VECTORS
    few = tiling(WIDTH, HEIGHT, 16)[2:]
    assert run(GatherMethod.SIGNED_SUM, [(Picture.P, few)] * 3).basis is Basis.VECTORS


def test_motion_is_measured_in_pixels_of_the_model_input() -> None:
    made = MotionGather(GatherSettings(3, 4, 8, GatherMethod.UNION))
    made.start(Geometry.fitted((WIDTH, HEIGHT), (32, 24)))
    made.push(frame(0, Picture.I), None, None)
    sampled(made, frame(0))
    made.push(frame(1), prediction_blocks(tiling(WIDTH, HEIGHT, 16, 6.0, 8.0)), None)
    v = sampled(made, frame(1)).v
    assert v is not None
    assert np.allclose(v, 5.0)


def test_residual_is_what_the_motion_does_not_explain() -> None:
    made = gather(GatherMethod.SIGNED_SUM, residual=True)
    assert made.needs_luma
    before = np.random.default_rng(1).integers(0, 200, (HEIGHT, WIDTH), np.uint8)
    made.push(frame(1), prediction_blocks(tiling(WIDTH, HEIGHT, 16)), before)
    assert sampled(made, frame(1)).r is None  # nothing sampled before it had luma
    now = np.roll(before, 4, axis=1)
    now[16:24, 24:32] += 40
    made.push(frame(2), prediction_blocks(tiling(WIDTH, HEIGHT, 16, -4.0, 0.0)), now)
    r = sampled(made, frame(2)).r
    assert r is not None
    assert r[2, 3] == 40
    assert not r[:, 1:][np.arange(6) != 2].any()


def test_a_gather_travels_to_another_process() -> None:
    made = pickle.loads(pickle.dumps(MotionGather(GatherSettings(6, 8, 8))))
    made.start(GEOMETRY)
    made.push(frame(0, Picture.I), None, None)
    assert sampled(made, frame(0)).basis is Basis.LUMA


def test_settings_and_order_are_checked() -> None:
    with pytest.raises(ValueError, match="out of range"):
        GatherSettings(0, 8, 8)
    made = MotionGather(GatherSettings(6, 8, 8))
    made._broken = False
    with pytest.raises(RuntimeError, match="start"):
        sampled(made, frame(0))


@given(rows=st.integers(1, 9), cols=st.integers(1, 9), seed=st.integers(0, 1000), new=st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_median_and_largest_of_nine_are_those_of_scipy(rows: int, cols: int, seed: int, new: float) -> None:
    draw = np.random.default_rng(seed)
    field = draw.integers(-3, 4, (2, rows, cols)).astype(np.float32)
    field[draw.random(field.shape) < new] = np.inf
    for plane, got in zip(field, median3x3(field), strict=True):
        assert np.array_equal(got, ndimage.median_filter(plane, size=3, mode="nearest"))
        assert np.array_equal(largest3x3(plane), ndimage.maximum_filter(plane, size=3, mode="nearest"))
    flags = (draw.random((rows, cols)) < new).astype(np.uint8)
    assert np.array_equal(median3x3(flags), ndimage.median_filter(flags, size=3, mode="nearest"))
