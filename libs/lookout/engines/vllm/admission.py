"""What can be refused before any KV moves: plans, blocks and positions that this engine cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookout.engines.types import PlanError, PositionError, WindowRequest
from lookout.windows import Layout, WindowPlan, rows_of


@dataclass(frozen=True, slots=True)
class Limits:
    """The model's shape and what the block table holds. `rows` bounds a window with one question."""

    layout: Layout
    hidden: int
    deepstack: int
    positions: int
    rows: int


def check(request: WindowRequest, suffixes: Sequence[int], limits: Limits) -> None:
    """Raise `PlanError` or `PositionError` for a request that cannot run; `suffixes` are question lengths."""
    plan = request.plan
    _check_shape(plan, limits)
    _check_room(request, max(suffixes, default=0), limits)
    _check_blocks(request, limits)
    if not request.keep and plan.parent is not None:
        raise PlanError(f"{plan.stream}: only a window computed in full can be thrown away (keep=False)")


def _check_shape(plan: WindowPlan, limits: Limits) -> None:
    where, axes = f"{plan.stream}: window {plan.window}", limits.layout.positions.axes
    if plan.positions.shape != (axes, plan.rows) or plan.source.shape != (plan.rows,):
        raise PlanError(
            f"{where}: positions {plan.positions.shape} and sources {plan.source.shape} do not fit "
            f"{plan.rows} rows on {axes} axes; plan with this engine's layout"
        )
    if plan.layers is not None or plan.select is not None:
        raise PlanError(
            f"{where}: policy {plan.policy.value!r} computes other rows in other layers, which vLLM's block "
            "table cannot hold; run it on the transformers engine"
        )
    rows = rows_of(plan.compute)
    if len(rows) and (rows[0] < 0 or rows[-1] >= plan.rows or np.any(np.diff(rows) <= 0)):
        raise PlanError(f"{where}: runs to compute are not ascending inside {plan.rows} rows")
    uncovered = np.ones(plan.rows, dtype=bool)
    uncovered[rows] = False
    if np.any(plan.source[uncovered] < 0):
        raise PlanError(f"{where}: some rows are neither computed nor reused")
    if (plan.parent is None) != bool(np.all(plan.source < 0)):
        raise PlanError(f"{where}: rows are reused exactly when the plan has a parent")


def _check_room(request: WindowRequest, longest: int, limits: Limits) -> None:
    plan = request.plan
    describe = max((question.describe for question in request.questions), default=0)
    last = max(plan.question_position + longest + describe - 1, int(plan.positions.max(initial=0)))
    if last >= limits.positions:
        raise PositionError(
            f"{plan.stream}: window {plan.window} and its questions reach position {last}; "
            f"{limits.layout.family} counts to {limits.positions - 1}: shorten the window or the question"
        )
    rows = plan.rows + longest + describe + 1
    if rows > limits.rows:
        raise PlanError(
            f"{plan.stream}: window {plan.window} and a question take {rows} rows, the block table holds "
            f"{limits.rows}: raise max_rows or kv_cache_bytes, or shorten the window"
        )


def _check_blocks(request: WindowRequest, limits: Limits) -> None:
    plan, rows = request.plan, rows_of(request.plan.compute)
    held = {block.index: block for block in request.blocks}
    for segment in plan.segments[1:]:
        low, high = np.searchsorted(rows, (segment.visual_start, segment.visual_stop))
        if low == high:
            continue
        where = f"{plan.stream}: window {plan.window}, block {segment.block}, frame {segment.frame}"
        block = held.get(segment.block)
        if block is None or segment.frame >= len(block.frames):
            raise PlanError(f"{where}: has rows to compute but came without its embeddings")
        frame = block.frames[segment.frame]
        expected = (segment.visual_stop - segment.visual_start, limits.hidden)
        if tuple(frame.tokens.shape) != expected:
            raise PlanError(f"{where}: embeddings {tuple(frame.tokens.shape)}, the plan has {expected}")
        levels = 0 if frame.deepstack is None else frame.deepstack.shape[0]
        if levels != limits.deepstack:
            raise PlanError(f"{where}: {levels} deepstack levels, the model has {limits.deepstack}")
