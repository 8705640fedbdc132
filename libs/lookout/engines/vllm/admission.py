"""What vLLM's block table cannot run, beside what every engine refuses (`lookout.engines.checks`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookout.engines.checks import check_request
from lookout.engines.types import PlanError, WindowRequest
from lookout.windows import Layout


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
    check_request(
        request,
        suffixes,
        layout=limits.layout,
        hidden=limits.hidden,
        deepstack=limits.deepstack,
        limit=limits.positions,
    )
    if plan.layers is not None or plan.select is not None:
        raise PlanError(
            f"{plan.stream}: window {plan.window}: policy {plan.policy.value!r} computes other rows in other "
            "layers, which vLLM's block table cannot hold; run it on the transformers engine"
        )
    describe = max((question.describe for question in request.questions), default=0)
    rows = plan.rows + max(suffixes, default=0) + describe + 1
    if rows > limits.rows:
        raise PlanError(
            f"{plan.stream}: window {plan.window} and a question take {rows} rows, the block table holds "
            f"{limits.rows}: raise max_rows or kv_cache_bytes, or shorten the window"
        )
