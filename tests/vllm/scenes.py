"""Runs of many windows through two engines at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lookout.models.engines import Question, WindowAnswer, WindowRequest
from lookout.models.windows import Planner, Policy, RowPolicy, StrideBlock, WindowPlan, WindowSettings
from tests.unit.models.engines.scenes import block

QUESTIONS = (
    Question("lying", "Is anyone lying on the ground?"),
    Question("smoke", "Any smoke?"),
    Question("x", "?"),
)
BLOCKS = 3


def planner(engine: Any, policy: Policy | RowPolicy = Policy.REFRESH, **settings: Any) -> Planner:
    return Planner(engine.layout, WindowSettings(BLOCKS, policy, **{"key_every": 100, **settings}))


def blocks_of(family: str, stream: str, window: int, *, frames: int = 3, seed: int = 0) -> list[StrideBlock]:
    """The blocks of one window; frames differ in number from stream to stream, so that rows do too."""
    count = frames + len(stream) % 2
    first = max(0, window - BLOCKS + 1)
    return [block(family, stream, i, frames=count, seed=seed) for i in range(first, window + 1)]


def slide(
    family: str,
    plans: Planner,
    streams: Sequence[str],
    windows: range,
    previous: dict[str, WindowPlan],
    *,
    questions: Sequence[Question] = QUESTIONS,
) -> list[list[WindowRequest]]:
    """The batches of consecutive windows of several streams; `previous` is carried on."""
    batches = []
    for window in windows:
        batch = []
        for stream in streams:
            blocks = blocks_of(family, stream, window)
            previous[stream] = plans.plan(blocks, previous.get(stream))
            batch.append(WindowRequest(previous[stream], blocks, questions))
        batches.append(batch)
    return batches


def apart(one: WindowAnswer, other: WindowAnswer) -> float:
    """The largest difference of answer logits; both must have answered."""
    pairs = zip(one.unwrap().answers, other.unwrap().answers, strict=True)
    return max(
        max(abs(a.yes_logit - b.yes_logit), abs(a.no_logit - b.no_logit)) if a.question == b.question else 9e9
        for a, b in pairs
    )


def same_cost(one: WindowAnswer, other: WindowAnswer) -> bool:
    """Equal rows and FLOPs; how bytes are allocated is each engine's own affair."""
    return replace(one.cost, kv_bytes=0) == replace(other.cost, kv_bytes=0)
