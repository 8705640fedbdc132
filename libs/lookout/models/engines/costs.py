"""Computes the cost of a window from its plan and the model's shape, in the same way for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lookout.models.engines.types import Cost, WindowAnswer
from lookout.models.flops import DecoderShape, causal_pairs, products
from lookout.models.windows import WindowPlan, rows_in


def window_cost(
    plan: WindowPlan,
    questions: Sequence[int],
    shape: DecoderShape,
    *,
    kv_bytes: int,
) -> Cost:
    """Return the cost of one window.

    Args:
        plan: The window's plan. If the engine selects rows itself (`plan.select`), each counts as much as the
            mean of the plan's reused rows.
        questions: Lengths of the questions in tokens.
        shape: The shape of the language model.
        kv_bytes: Bytes of KV that the engine keeps for the window.
    """
    layers, kv_width = shape.layers, shape.kv_heads * shape.head_dim
    rows = rows_in(plan.compute)
    old = plan.source[rows] >= 0
    fresh = int(np.count_nonzero(~old))
    if plan.select is not None:
        early, late = plan.select.layer, layers - plan.select.layer
        reused = rows[old]
        mean = float(np.mean(reused + 1)) if len(reused) else 0.0
        late_rows = fresh + plan.select.rows
        late_seen = float(np.sum(rows[~old] + 1)) + plan.select.rows * mean
        token_layers = early * len(rows) + late * late_rows
        pairs = early * float(np.sum(rows + 1)) + late * late_seen
        refreshed = plan.select.rows
        select = products(len(rows), shape.hidden * 2 * kv_width)
    else:
        per_layer = [rows_in(plan.runs(layer)) for layer in range(layers)] if plan.layers else [rows] * layers
        token_layers = sum(len(part) for part in per_layer)
        pairs = float(sum(np.sum(part + 1) for part in per_layer))
        refreshed, select = int(np.count_nonzero(old)), 0
    tokens = sum(questions)
    asked_pairs = sum(causal_pairs(count, plan.rows) for count in questions)
    place = layers * 3 * kv_width
    flops = {
        "linear": products(token_layers, shape.linear),
        "attention": int(shape.pair_flops * pairs),
        "place": place * plan.rows,
        "select": select,
        "questions": shape.flops(tokens, asked_pairs) + products(len(questions), 2 * shape.hidden),
    }
    return Cost(
        tokens_kept=plan.rows,
        tokens_reused=plan.rows - fresh - refreshed,
        tokens_refreshed=refreshed,
        tokens_new=fresh,
        question_tokens=tokens,
        token_layers=token_layers,
        kv_bytes=kv_bytes,
        flops={stage: count for stage, count in flops.items() if count},
        row_flops=shape.flops(1, 0) + place,
        pair_flops=shape.flops(0, 1),
    )


def written_flops(shape: DecoderShape, before: int, rows: int) -> int:
    """Return the FLOPs to write `rows` rows of text, one at a time, after `before` rows whose KV is kept."""
    return shape.flops(rows, causal_pairs(rows, before))


def with_text(answer: WindowAnswer, place: int, text: str, flops: int) -> WindowAnswer:
    """Return a window's answer with a text added to the answer at index `place`; writing the text took
    `flops`."""
    replies = list(answer.answers)
    replies[place] = replace(replies[place], text=text, text_flops=flops)
    spent = answer.cost.flops.get("describe", 0) + flops
    cost = replace(answer.cost, flops={**answer.cost.flops, "describe": spent})
    return replace(answer, answers=tuple(replies), cost=cost)
