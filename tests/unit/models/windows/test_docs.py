"""The worked example of docs/windows.md is what the planner says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lookout.models.windows import (
    EncodedFrame,
    Layout,
    Planner,
    RowRange,
    RunningPositions,
    StrideBlock,
    WindowPlan,
    WindowSettings,
    rows_in,
)

PAGE = Path(__file__).parents[4] / "docs" / "windows.md"
LAYOUT = Layout("internvl", (1, 2), (), (), (), (3,), 4, 5, RunningPositions(4096), 4)


def block(index: int, kept: list[int]) -> StrideBlock:
    masks = [np.ones((2, 2), bool), np.zeros((2, 2), bool)]
    masks[1].flat[kept] = True
    frames = [
        EncodedFrame((2 * index + n) * 500_000, n == 0, mask, torch.zeros(int(mask.sum()), 8))
        for n, mask in enumerate(masks)
    ]
    return StrideBlock("gate/0", index, tuple(frames))


def names(plan: WindowPlan, blocks: list[StrideBlock]) -> list[str]:
    out = ["p0", "p1"]
    for one in blocks:
        for number, frame in enumerate(one.frames):
            letter = ("abc" if number == 0 else "mno")[one.index]
            out += [f"{letter}{kept}" for kept in np.flatnonzero(frame.keep)]
    assert len(out) == plan.rows
    return out


def test_the_worked_example_of_the_page_is_what_the_planner_plans() -> None:
    blocks = [block(0, [1]), block(1, [3]), block(2, [0, 2])]
    planner = Planner(LAYOUT, WindowSettings(2, key_every=1000))
    first = planner.plan(blocks[:2], key=True)
    second = planner.plan(blocks[1:], first, key=False)
    computed = set(rows_in(second.compute).tolist())
    lines = []
    left, right = names(first, blocks[:2]), names(second, blocks[1:])
    for row in range(second.rows):
        before = (left[row], str(first.positions[0, row])) if row < first.rows else ("", "")
        source = second.source[row]
        origin = (
            f"row {source}"
            if row not in computed
            else "computed" + (f" (was row {source})" if source >= 0 else "")
        )
        cells = [str(row), *before, right[row], str(second.positions[0, row]), origin]
        lines.append("| " + " | ".join(cells) + " |")
    shown = (
        PAGE.read_text().split("<!-- example -->")[1].split("<!-- /example -->")[0].strip().splitlines()[2:]
    )
    assert [line.replace("|  |", "| |").replace("|  |", "| |") for line in lines] == shown
    assert second.compute == (RowRange(2, 6), RowRange(7, 13))
    assert second.question_position == 18
