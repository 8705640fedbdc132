"""What a plan costs, counted from the plan and the model's shape; the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lookout.engines.types import Cost
from lookout.windows import WindowPlan, rows_in


def window_cost(
    plan: WindowPlan,
    questions: Sequence[int],
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    linear: int,
    hidden: int,
    kv_bytes: int,
) -> Cost:
    """The cost of one window with questions of the given lengths in tokens.

    `linear` is the weights of one layer's projections and MLP. FLOPs are 2 per multiply-add; attention
    counts the rows each row sees (4 * heads * head_dim per pair). Rows that an engine selects by itself are
    counted at the mean cost of the reused rows.
    """
    rows = rows_in(plan.compute)
    old = plan.source[rows] >= 0
    fresh = int(np.count_nonzero(~old))
    pair = 4 * heads * head_dim
    if plan.select is not None:
        early, late = plan.select.layer, layers - plan.select.layer
        reused = rows[old]
        mean = float(np.mean(reused + 1)) if len(reused) else 0.0
        late_rows = fresh + plan.select.rows
        late_seen = float(np.sum(rows[~old] + 1)) + plan.select.rows * mean
        token_layers = early * len(rows) + late * late_rows
        seen = early * float(np.sum(rows + 1)) + late * late_seen
        refreshed = plan.select.rows
        select = 2 * hidden * 2 * kv_heads * head_dim * len(rows)
    else:
        per_layer = [rows_in(plan.runs(layer)) for layer in range(layers)] if plan.layers else [rows] * layers
        token_layers = sum(len(part) for part in per_layer)
        seen = float(sum(np.sum(part + 1) for part in per_layer))
        refreshed, select = int(np.count_nonzero(old)), 0
    asked = sum(questions)
    asked_seen = sum(count * plan.rows + count * (count + 1) // 2 for count in questions)
    flops = {
        "linear": 2 * linear * token_layers,
        "attention": int(pair * seen),
        "place": 3 * kv_heads * head_dim * plan.rows * layers,
        "select": select,
        "questions": layers * (2 * linear * asked + pair * asked_seen) + 4 * hidden * len(questions),
    }
    return Cost(
        tokens_kept=plan.rows,
        tokens_reused=plan.rows - fresh - refreshed,
        tokens_refreshed=refreshed,
        tokens_new=fresh,
        question_tokens=asked,
        token_layers=token_layers,
        kv_bytes=kv_bytes,
        flops={stage: count for stage, count in flops.items() if count},
        row_flops=layers * (2 * linear + 3 * kv_heads * head_dim),
        pair_flops=layers * pair,
    )
