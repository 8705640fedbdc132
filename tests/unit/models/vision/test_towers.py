"""Every family against its own dense tower: kept tokens, whole frames, batches, odd grids, refusals."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lookout.models.families import load_tower
from lookout.models.vision import FrameInput, FrameTokens, Tower, VisionError, passes
from lookout.models.vision.base import BaseTower
from lookout.models.vision.passes import Tensors
from lookout.models.vision.sequences import Sequences
from tests import tiny_models
from tests.unit.models.vision.dense import DenseOracle, difference

FAMILIES = tiny_models.FAMILIES
QWEN = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl")
ANY_SIZE = (*QWEN, "llava_onevision2")
CLOSE = 2e-4


@functools.cache
def tower(family: str) -> Tower:
    size = tiny_models.SIZE[family]
    return load_tower(tiny_models.checkpoint(family), size=(size, size))


@functools.cache
def oracle(family: str) -> DenseOracle:
    return DenseOracle(family)


def frame(
    family: str, seed: int, ratio: float = 0.4, size: tuple[int, int] | None = None, times: int | None = None
) -> FrameInput:
    random = np.random.default_rng(seed)
    grid = tower(family).grid if size is None else tower(family).grid_for(*size)
    shape = (times or grid.temporal, grid.height, grid.width, 3)
    return FrameInput(
        random.integers(0, 256, shape, dtype=np.uint8),
        random.random((grid.group_rows, grid.group_cols)) < ratio,
    )


def against_dense(family: str, one: FrameInput) -> float:
    grid = tower(family).grid_for(*one.pixels.shape[1:3])
    return difference(tower(family).encode([one])[0], oracle(family).encode(one, grid))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_kept_equals_the_models_own_forward(family: str) -> None:
    whole = frame(family, 1, 2.0)
    expected = oracle(family).encode(whole, tower(family).grid, own=True)
    assert difference(tower(family).encode([whole])[0], expected) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_kept_tokens_equal_the_dense_tower_with_dropped_keys_masked(family: str, data: st.DataObject) -> None:
    grid = tower(family).grid
    bits = data.draw(st.lists(st.booleans(), min_size=grid.tokens, max_size=grid.tokens))
    keep = np.array(bits).reshape(grid.group_rows, grid.group_cols)
    one = FrameInput(frame(family, len(bits)).pixels, keep)
    if not keep.any():
        assert tower(family).encode([one])[0].tokens.shape == (0, grid.hidden)
    else:
        assert against_dense(family, one) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_masking_changes_kept_tokens(family: str) -> None:
    """The oracle is no tautology: what is dropped matters to what is kept."""
    one = frame(family, 3)
    plain = oracle(family).encode(one, tower(family).grid, own=True)
    assert difference(tower(family).encode([one])[0], plain) > 100 * CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_group_and_a_fully_pruned_frame(family: str) -> None:
    grid = tower(family).grid
    corner = np.zeros((grid.group_rows, grid.group_cols), dtype=bool)
    nothing = FrameInput(frame(family, 5).pixels, corner.copy())
    corner[-1, -1] = True
    last = FrameInput(frame(family, 4).pixels, corner)
    assert against_dense(family, last) < CLOSE
    empty, alone, other = tower(family).encode([nothing, last, nothing])
    assert empty.tokens.shape == other.tokens.shape == (0, grid.hidden)
    assert alone.tokens.shape == (1, grid.hidden)
    if grid.deepstack:
        assert empty.deepstack is not None
        assert empty.deepstack.shape == (grid.deepstack, 0, grid.hidden)
    assert tower(family).encode([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(ratios=st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.1]), min_size=2, max_size=6))
def test_a_batch_of_cameras_equals_its_members_alone(family: str, ratios: list[float]) -> None:
    frames = [frame(family, i, ratio) for i, ratio in enumerate(ratios)]
    together = tower(family).encode(frames)
    for one, tokens in zip(frames, together, strict=True):
        assert difference(tokens, tower(family).encode([one])[0]) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_pass_gives_the_same_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded shapes are for GPUs; here they are computed on the CPU."""
    model = tower(family)
    assert isinstance(model, BaseTower)
    batches: list[list[float]] = [[0.3], [0.1, 0.9, 0.0, 0.4], [2.0], [0.6] * 3]
    inputs = [[frame(family, 10 * n + i, r) for i, r in enumerate(batch)] for n, batch in enumerate(batches)]
    plain = [model.encode(frames) for frames in inputs]
    shapes: list[int] = []

    def counted(tensors: Tensors, segments: Sequence[Sequences]) -> tuple[torch.Tensor, ...]:
        shapes.append(int(segments[0].cumulative[-1]))
        return model._run(tensors, segments)

    monkeypatch.setattr(model, "_passes", passes.Passes(counted, model.device))
    model.pad_passes()
    for frames, expected in zip(inputs, plain, strict=True):
        for ours, theirs in zip(model.encode(frames), expected, strict=True):
            assert difference(ours, theirs) < CLOSE
    whole = model.grid.rows * model.grid.cols + model.leading
    assert shapes[0] == shapes[2] == whole
    assert {shape / whole for shape in shapes} <= set(passes.SIZES)
    monkeypatch.setattr(passes, "FRAME_LIMIT", 1)
    model.encode(inputs[1])
    assert shapes[-1] % whole  # as it is


@pytest.mark.parametrize("family", ANY_SIZE)
def test_cameras_of_different_sizes_share_a_batch(family: str) -> None:
    side = tower(family).grid.patch * 2
    sizes = [(side, 3 * side), (5 * side, 7 * side), (3 * side, side), (4 * side, 4 * side)]
    frames = [frame(family, i, 0.5, size) for i, size in enumerate(sizes)]
    for one, tokens in zip(frames, tower(family).encode(frames), strict=True):
        grid = tower(family).grid_for(*one.pixels.shape[1:3])
        assert difference(tokens, oracle(family).encode(one, grid)) < CLOSE


@pytest.mark.parametrize(("family", "side"), [("internvl", 84), ("smolvlm", 144), ("smolvlm", 240)])
def test_other_squares_take_their_positions_from_the_table(family: str, side: int) -> None:
    one = frame(family, 2, 0.5, (side, side))
    assert against_dense(family, one) < CLOSE
    whole = frame(family, 2, 2.0, (side, side))
    grid = tower(family).grid_for(side, side)
    own = oracle(family).encode(whole, grid, own=True)
    assert difference(tower(family).encode([whole])[0], own) < CLOSE


def test_qwen2_5_drops_empty_windows() -> None:
    family = "qwen2_5_vl"
    keep = np.zeros((4, 4), dtype=bool)
    keep[0, 0] = keep[3, 2] = keep[3, 3] = True  # two of the four 2x2-group windows stay empty
    assert against_dense(family, FrameInput(frame(family, 6).pixels, keep)) < CLOSE


@pytest.mark.parametrize("family", QWEN)
def test_both_frames_of_a_temporal_patch_count_and_a_still_is_repeated(family: str) -> None:
    pair = frame(family, 7, 2.0)
    swapped = FrameInput(pair.pixels[::-1].copy(), pair.keep)
    still = FrameInput(pair.pixels[:1], pair.keep)
    twice = FrameInput(np.repeat(pair.pixels[:1], 2, axis=0), pair.keep)
    a, b, c, d = tower(family).encode([pair, swapped, still, twice])
    assert difference(a, b) > 100 * CLOSE
    assert difference(c, d) < CLOSE


def test_llava_taps_cover_the_published_grid() -> None:
    """27 -> 14: patch row 13 feeds tokens 6 and 7, so a change there keeps both."""
    from lookout.models.families.towers.llava_onevision import pooling

    taps = pooling(27)
    assert [token for token, patches in enumerate(taps) if 13 in dict(patches)] == [6, 7]
    grid = tower("llava_onevision").grid
    assert (grid.rows, grid.group_rows) == (9, 5)
    dynamic = np.zeros((9, 9), dtype=bool)
    dynamic[4, 0] = True
    fed = [row for row, patches in enumerate(grid.row_taps) if 4 in patches]
    assert np.flatnonzero(grid.groups(dynamic)[:, 0]).tolist() == fed
    for row in fed:
        assert grid.patches(grid.groups(dynamic))[list(grid.row_taps[row]), 0].all()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), ratio=st.sampled_from([0.02, 0.1, 0.5]))
def test_groups_and_patches_are_adjoint(family: str, seed: int, ratio: float) -> None:
    grid = tower(family).grid
    random = np.random.default_rng(seed)
    dynamic = random.random((grid.rows, grid.cols)) < ratio
    groups = grid.groups(dynamic)
    assert (grid.patches(groups) | ~dynamic).all()
    for row, col in np.argwhere(~groups):
        assert not dynamic[np.ix_(grid.row_taps[row], grid.col_taps[col])].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_gives_the_same_tower(family: str) -> None:
    folder = tiny_models.checkpoint(family)
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    size = tiny_models.SIZE[family]
    shared = load_tower(model, size=(size, size))
    one = frame(family, 8)
    assert difference(shared.encode([one])[0], tower(family).encode([one])[0]) < 1e-6
    assert shared.family == tower(family).family == family
    assert isinstance(shared, Tower)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_language_model_stays_on_disk(family: str) -> None:
    weights = {name for name, _ in tower(family).model.named_parameters()}  # type: ignore[attr-defined]
    assert not any(".layers." in name for name in weights if name.startswith("language_model"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_flops_are_those_the_operations_spend(family: str, ratio: float) -> None:
    frames = [frame(family, 9, ratio)]
    with FlopCounterMode(display=False) as counter:
        tower(family).encode(frames)
    counted = sum(
        flops
        for name, flops in counter.get_flop_counts()["Global"].items()
        if "scaled_dot_product" not in str(name)
    )
    assert counted <= tower(family).flops(frames)
    # The counter does not know the CPU's attention kernel; the rest must agree to the pooling's rounding.
    assert counted > 0.5 * tower(family).flops(frames)


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_fall_with_the_kept_share(family: str) -> None:
    counts = [tower(family).flops([frame(family, 10, ratio)]) for ratio in (2.0, 0.5, 0.1, -1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_near_float32(family: str) -> None:
    size = tiny_models.SIZE[family]
    half = load_tower(tiny_models.checkpoint(family), dtype=torch.bfloat16, size=(size, size))
    one = frame(family, 11)
    got, exact = half.encode([one])[0], tower(family).encode([one])[0]
    assert got.tokens.dtype == torch.bfloat16
    error = (got.tokens.float() - exact.tokens).norm() / exact.tokens.norm()
    assert float(error) < 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_that_do_not_fit_are_named(family: str) -> None:
    good = frame(family, 12)
    with pytest.raises(VisionError, match="frame 1: the keep mask"):
        tower(family).encode([good, FrameInput(good.pixels, good.keep[:-1])])
    floats: Any = good.pixels.astype(np.float32)
    with pytest.raises(VisionError, match="frame 0: pixels must be uint8"):
        tower(family).encode([FrameInput(floats, good.keep)])
    with pytest.raises(VisionError, match=f"{family} cannot take an input of 100x99 pixels"):
        tower(family).grid_for(100, 99)
    many = np.concatenate([good.pixels] * 3)
    with pytest.raises(VisionError, match="or one still, not"):
        tower(family).encode([FrameInput(many, good.keep)])


@pytest.mark.parametrize(
    ("vision", "words"),
    [
        ({"layer_norm_type": "rms_norm"}, "layer_norm, gelu, no head and one frame per patch"),
        ({"use_head": True}, "layer_norm, gelu, no head and one frame per patch"),
        ({"hidden_size": 32}, "a head of 16 entries is not divisible by 32"),
    ],
)
def test_another_tower_than_vllm_computes_is_refused(
    vision: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = tiny_models.build("llava_onevision2", tmp_path, vision=vision)
    with pytest.raises(VisionError, match=words):
        load_tower(folder)


def test_unknown_families_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VisionError, match="not a checkpoint folder"):
        load_tower(tmp_path)
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(VisionError, match="no vision tower: model_type 'qwen2'"):
        load_tower(tmp_path)


def test_tokens_are_plain_data() -> None:
    assert FrameTokens(torch.zeros(1, 2)).deepstack is None
