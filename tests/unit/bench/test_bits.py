"""How bits of blocks are spread over the model's groups, and how a signal's choice is scored."""

from __future__ import annotations

import numpy as np
import pytest

from bench.bits import recall, spread, summary
from bench.codecsight.bits import RULE, AsMany
from bench.motion import GRID
from lookout.pruning import Sample
from lookout.streams import ClipFrames, StrideFrame


@pytest.mark.parametrize("shape", [(30, 40), (17, 15), (16, 16), (8, 10)])
def test_bits_are_spread_by_area_and_none_is_lost(shape: tuple[int, int]) -> None:
    maps = np.random.default_rng(0).random((2, *shape)).astype(np.float32)
    found = spread(maps)
    assert found.shape == (2, 16, 16)
    assert found.sum((1, 2)) == pytest.approx(maps.sum((1, 2)), rel=1e-5)
    assert spread(np.ones((1, *shape), np.float32))[0] == pytest.approx(shape[0] * shape[1] / 256, rel=1e-5)


def test_a_block_counts_where_it_lies() -> None:
    corner = np.zeros((1, 32, 8), np.float32)
    corner[0, 0, 7] = 6.0  # half a group high, two groups wide
    assert np.argwhere(spread(corner)[0]).tolist() == [[0, 14], [0, 15]]
    assert spread(corner)[0, 0, 14:].tolist() == [3.0, 3.0]


def test_recall_is_of_what_changed_among_the_best() -> None:
    truth = np.array([[True, True], [False, False]])
    assert recall(np.array([[3.0, 0.0], [2.0, 1.0]], np.float32), truth, 2) == 0.5
    assert recall(np.array([[3.0, 2.0], [1.0, 0.0]], np.float32), truth, 2) == 1.0
    equal = np.zeros((100, 2), np.float32)
    assert 0.3 < recall(equal, np.arange(200).reshape(100, 2) < 100, 100) < 0.7  # drawn, not the first


def test_codecs_without_vectors_have_no_row_of_them() -> None:
    row = {
        "recall": {"bits": 0.5, "bits, 4 x 4": 0.6, "random": 0.2, "default masks": 0.9},
        "kept": 0.2,
        "kept by default masks": 0.1,
        "cpu": {"bits": 0.1, "vectors": 0.2, "luma": 0.2},
    }
    found = summary([row, row])
    assert "vectors" not in found
    assert "4 x 4 less vectors 95 %" not in found
    assert found["4 x 4 less random 95 %"] == pytest.approx([0.4, 0.4])


def test_places_follow_a_signal_and_their_number_the_default() -> None:
    still = np.full((448, 448, 3), 90, np.uint8)
    moved = still.copy()
    moved[:112, :112] = 200
    frames = [StrideFrame(Sample(one), 500_000 * n, n) for n, one in enumerate([still] * 2 + [moved] * 2)]
    scores = np.zeros((4, 16, 16), np.float32)
    scores[:, 12:] = 1.0
    samples = [frame.sample for frame in frames]
    usual, _ = RULE.masks(samples, GRID)
    masks, _ = AsMany(ClipFrames(frames, 500_000), scores).masks(samples, GRID)
    assert [mask.anchor for mask in masks] == [mask.anchor for mask in usual]
    assert [mask.keep.sum() for mask in masks] == [mask.keep.sum() for mask in usual]
    (change,) = (n for n, mask in enumerate(usual) if not mask.anchor and mask.keep.any())
    assert not usual[change].keep[12:].any()
    assert masks[change].keep[12:].sum() == masks[change].keep.sum()
