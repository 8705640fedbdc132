"""Rivals of the default: which frames they see, how strides make a window's answer, how they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from bench import worth
from bench.answered import QUESTIONS
from bench.pages import page
from bench.record import Record
from lookout.models.engines import WindowRequest
from lookout.models.windows import Planner, Policy, WindowSettings
from tests.unit.models.engines.scenes import block, engine
from watchbench.questions import PRODUCT, QUESTIONS as KNOWN


def test_last_and_even_frames_of_a_window() -> None:
    assert worth.last(4) == [76, 77, 78, 79]
    assert worth.even(8) == [0, 11, 23, 34, 45, 56, 68, 79]
    assert len(set(worth.even(16))) == 16


def test_the_tower_encodes_what_no_window_before_showed() -> None:
    assert worth.newly(worth.last(4)) == 4 / 16
    assert worth.newly(worth.last(32)) == 1.0  # half of them were new a stride ago
    assert worth.newly([0, 16, 32, 48, 64]) == 1 / 16
    assert worth.newly(range(80)) == 1.0


def test_a_window_shows_frames_at_places_and_skips_blocks_before_them() -> None:
    window = [block("internvl", "cam/0", index, frames=16) for index in range(3, 8)]
    for places in (worth.last(4), worth.even(8), [0, 79]):
        told = [frame for each in worth.shown(window, places) for frame in each.frames]
        every = [frame for each in window for frame in each.frames]
        assert [id(frame) for frame in told] == [id(every[place]) for place in sorted(places)]
    assert [each.index for each in worth.shown(window, worth.last(4))] == [7]
    assert [each.index for each in worth.shown(window, [17, 79])] == [4, 5, 6, 7]


def test_windows_that_are_alone_equal_windows_computed_whole() -> None:
    """p(yes) and FLOPs of every stride alone are those of a plan of that one block, whatever came before."""
    here, blocks = engine("internvl"), [block("internvl", "cam/0", index) for index in range(4)]
    p, flops = worth.alone(here, [[each] for each in blocks])
    for each, own, spent in zip(blocks, p, flops, strict=True):
        settings = WindowSettings(1, Policy.PRUNE_ONLY, samples=worth.CUT.frames, stride_s=8.0)
        request = WindowRequest(
            Planner(here.layout, settings).plan([each]), [each], tuple(QUESTIONS), keep=False
        )
        answer = here.run([request])[0].unwrap()
        np.testing.assert_allclose(own, [one.p_yes for one in answer.answers], atol=1e-6)
        assert spent == answer.cost.full_flops(request.plan.rows)
    assert here.held("cam/0") is None


def test_a_windows_answer_is_the_largest_of_its_strides() -> None:
    p = np.zeros((6, 2))
    p[0, 0], p[5, 1] = 0.9, 0.8
    got = worth.by_stride(p, np.max)
    assert got.shape == (2, 2)
    assert got.tolist() == [[0.9, 0.0], [0.0, 0.8]]
    np.testing.assert_allclose(worth.by_stride(p, np.mean), [[0.18, 0.0], [0.0, 0.16]])


def _ways() -> dict[str, worth.Table]:
    """Two ways on three cameras: the second misses what the first finds on one camera."""
    table = np.zeros((3, len(KNOWN), 4), int)
    table[:, :, 3] = 4
    table[:, [KNOWN.index(one) for one in KNOWN if one.name in PRODUCT], 0] = 2
    worse = table.copy()
    worse[0, :, 1] += worse[0, :, 0]
    worse[0, :, 0] = 0
    return {name: worse if name == "default" else table for name in ("full", "default", "strides")}


def test_rivals_are_compared_on_the_same_cameras() -> None:
    ways = _ways()
    found = {
        name: [worth.Found(np.zeros((1, 1)), flops, 0.5)] * 3
        for name, flops in {"full": 10.0, "default": 2.0, "strides": 1.0}.items()
    }
    told = worth.rivals(ways, found)
    assert told["default"]["flops"] == pytest.approx(0.2)
    assert told["strides"]["product"] == 1.0
    assert told["default"]["product"] == 0.8  # 4 of 6 found, none false
    less = worth.less_others(ways, "strides")
    assert less["default"]["product"] == pytest.approx(0.2)
    assert less["full"]["product 95 %"] == [0.0, 0.0]
    assert less["default"]["product 95 %"][0] == 0.0  # a draw may have left the camera out
    families = worth.families(ways)
    assert families["return"]["full"] is None  # no case
    assert families["crowd"]["default"] == 0.8


def test_the_counts_of_cameras_are_kept_and_stay_off_the_page() -> None:
    told = worth.per_camera(["a", "b", "c"], _ways())
    assert told["default"]["a"].split()[0] == "0/2/0/4"
    record = Record("x", "a machine", "abc", "2026-01-01", 0.1, {"ratio": 2, "per camera": told})
    shown = page("worth", record)
    assert "0/2/0/4" not in shown
    assert "| ratio | 2 |" in shown
