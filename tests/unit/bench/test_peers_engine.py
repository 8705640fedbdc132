"""What the bench beside other engines drops and averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.peers_engine import Spent, dropped, f1, summary, table, thinned, widened
from tests.unit.engines.scenes import block

WINDOW = [block("internvl", "cam/0", index, frames=4, keep=1.1) for index in range(2)]


def test_tokens_are_dropped_by_a_rule_over_the_whole_window() -> None:
    def first(tokens: torch.Tensor, size: tuple[int, int, int], merge: int, rate: float) -> torch.Tensor:
        assert (len(tokens), size, merge) == (8 * 16, (8, 4, 4), 1)
        return torch.arange(len(tokens)) < (1 - rate) * len(tokens)

    out = dropped(WINDOW, first, 0.25)
    assert [len(frame.kept) for block in out for frame in block.frames] == [16, 16, 0, 0, 0, 0, 0, 0]
    assert torch.equal(out[0].frames[1].tokens, WINDOW[0].frames[1].tokens)


def test_frames_are_dropped_evenly() -> None:
    assert [len(block.frames) for block in thinned(WINDOW, 0.5)] == [2, 2]
    assert [len(block.frames) for block in thinned(WINDOW, 0.01)] == [1, 0]


def test_a_block_for_another_width_keeps_its_groups() -> None:
    wide = widened(WINDOW[0], 7)
    assert [frame.tokens.shape for frame in wide.frames] == [(16, 7)] * 4
    assert widened(WINDOW[0], WINDOW[0].frames[0].tokens.shape[1]) is WINDOW[0]


def test_peers_are_compared_with_ours_and_with_dense_windows() -> None:
    def camera(shift: float) -> dict[str, Spent]:
        dense = Spent([[0.9, 0.1]], [4.0], [10.0], [100])
        ours = Spent([[0.9 - shift, 0.1]], [1.0], [2.0], [40])
        append = Spent([[0.2, 0.1]], [2.0], [5.0], [100])
        return {"resend": dense, "append": append, "ours": ours}

    rows = table([camera(0.0), camera(0.02)])
    assert (rows["ours"]["dp"], rows["resend"]["time_over_ours"], rows["append"]["f1"]) == (0.005, 4.0, 0.0)
    line = summary({"rendered, 80 frames": {"equal": rows}, "real, 80 frames": {"equal": rows}}, 0.5)
    assert line == {
        "vs_resend": 4.0,
        "vs_append": 2.0,
        "vs_evs": None,
        "vs_vidcom2": None,
        "low_motion_flops_saved": 0.5,
        "dp_real": 0.005,
    }
    assert f1(np.array([0.1]), np.array([0.2])) == pytest.approx(1.0)
