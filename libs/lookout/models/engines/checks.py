"""Checks that every engine makes before any KV moves: whether plans, blocks and positions fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lookout.models.engines.types import PlanError, PositionError, WindowRequest
from lookout.models.windows import Layout, WindowPlan, rows_in


def check_request(
    request: WindowRequest,
    suffixes: Sequence[int],
    *,
    layout: Layout,
    hidden: int,
    deepstack: int,
    limit: int,
) -> None:
    """Check that an engine with this layout can run a request.

    Args:
        suffixes: Lengths of the questions in tokens.
        limit: First position beyond the model's range.

    Raises:
        PlanError: The plan does not fit the layout, its blocks do not fit the model, or a window that reuses
            KV is to be discarded.
        PositionError: A position reaches `limit`.
    """
    check_plan(request.plan, layout)
    check_positions(request, max(suffixes, default=0), layout.family, limit)
    check_blocks(request, hidden, deepstack)
    if not request.keep and request.plan.parent is not None:
        raise PlanError(
            f"{request.plan.stream}: only a window computed in full can be discarded (keep=False)"
        )


def check_plan(plan: WindowPlan, layout: Layout) -> None:
    """Check a plan: its shapes and row ranges, and that every row is computed or reused."""
    axes, where = layout.positions.axes, f"{plan.stream}: window {plan.window}"
    if plan.positions.shape != (axes, plan.rows) or plan.source.shape != (plan.rows,):
        raise PlanError(
            f"{where}: positions {plan.positions.shape} and sources {plan.source.shape} do not fit "
            f"{plan.rows} rows on {axes} axes; plan with this engine's layout"
        )
    if plan.layers is not None and (len(plan.layers) != layout.layers or plan.layers[0] != plan.compute):
        raise PlanError(f"{where}: its schedule of {len(plan.layers)} layers does not fit {layout.layers}")
    if plan.select is not None and not 0 < plan.select.layer < layout.layers:
        raise PlanError(f"{where}: rows are selected at layer {plan.select.layer} of {layout.layers}")
    rows = rows_in(plan.compute)
    if len(rows) and (rows[0] < 0 or rows[-1] >= plan.rows or np.any(np.diff(rows) <= 0)):
        raise PlanError(f"{where}: row ranges to compute must be ascending and inside {plan.rows} rows")
    uncovered = np.ones(plan.rows, dtype=bool)
    uncovered[rows] = False
    if np.any(plan.source[uncovered] < 0):
        raise PlanError(f"{where}: some rows are neither computed nor reused")
    if (plan.parent is None) != bool(np.all(plan.source < 0)):
        raise PlanError(f"{where}: a plan must reuse rows if and only if it has a parent")


def check_positions(request: WindowRequest, longest: int, family: str, limit: int) -> None:
    """Check that the window, its longest question and its description stay within the model's positions."""
    plan = request.plan
    describe = max((question.describe for question in request.questions), default=0)
    last = max(plan.question_position + longest + describe - 1, int(plan.positions.max(initial=0)))
    if last >= limit:
        raise PositionError(
            f"{plan.stream}: window {plan.window} and its questions reach position {last}; {family} has "
            f"positions up to {limit - 1}: shorten the window or the question"
        )


def check_blocks(request: WindowRequest, hidden: int, deepstack: int) -> None:
    """Check that every visual row to compute has an embedding of the model's shape."""
    plan, rows = request.plan, rows_in(request.plan.compute)
    blocks = {block.index: block for block in request.blocks}
    for part in plan.parts[1:]:
        low, high = np.searchsorted(rows, (part.visual_start, part.visual_stop))
        if low == high:
            continue
        where = f"{plan.stream}: window {plan.window}, block {part.block}, frame {part.frame}"
        block = blocks.get(part.block)
        if block is None or part.frame >= len(block.frames):
            raise PlanError(f"{where}: rows must be computed, but their embeddings are missing")
        frame = block.frames[part.frame]
        expected = (part.visual_stop - part.visual_start, hidden)
        if tuple(frame.tokens.shape) != expected:
            raise PlanError(f"{where}: embeddings {tuple(frame.tokens.shape)}, but the plan has {expected}")
        levels = 0 if frame.deepstack is None else frame.deepstack.shape[0]
        if levels != deepstack:
            raise PlanError(f"{where}: {levels} deepstack levels, but the model has {deepstack}")
