"""Any policy over any number of windows equals the version-expanded oracle, on all four families."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from bench.row_policies import ROW_POLICIES
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.windows import (
    Planner,
    Policy,
    RowPolicy,
    StrideBlock,
    WindowPlan,
    WindowSettings,
    ranges_of,
    rows_in,
    with_digest,
)
from tests.tiny_models import FEW_FAMILIES
from tests.unit.models.engines.oracle import Step, logits
from tests.unit.models.engines.scenes import block, engine

QUESTION = Question("q", "Is anyone lying?")
EXACT = 1e-9

BY_NAME: dict[str, Policy | RowPolicy] = {policy.value: policy for policy in (*Policy, *ROW_POLICIES)}


def chain(
    family: str, seed: int, size: int, policies: list[str], *, windows: int = 8, key_every: int = 7
) -> list[Step]:
    """Run a chain of windows on the float64 engine and note what it did; checks each answer's shape."""
    runner = engine(family, torch.float64)
    told = WindowSettings(size, key_every=key_every, anchors=(None, 1, 2)[seed % 3])
    planner = Planner(runner.layout, told)
    draw = np.random.default_rng(seed)
    steps: list[Step] = []
    blocks: list[StrideBlock] = []
    previous: WindowPlan | None = None
    got = []
    for number in range(windows):
        frames = int(draw.integers(0 if blocks else 1, 4))
        blocks = [*blocks, block(family, "cam/0", number, frames=frames, keep=0.4, seed=seed)][-size:]
        if not any(one.frames for one in blocks):
            previous = None
            continue
        name = policies[number % len(policies)]
        plan = planner.plan(blocks, previous, policy=BY_NAME.get(name, Policy.REUSE_ALL))
        if name == "random":
            more = np.flatnonzero(draw.random(plan.rows) < 0.3)
            plan = with_digest(replace(plan, compute=ranges_of(np.union1d(rows_in(plan.compute), more))))
        before = moved(runner, plan) if plan.select is not None else None
        answer = runner.run([WindowRequest(plan, blocks, [QUESTION])])[0].unwrap()
        selected = None if before is None else changed(runner, plan, before)
        steps.append(Step(plan, blocks, runner.suffix(QUESTION.text), selected))
        got.append([answer.answers[0].yes_logit, answer.answers[0].no_logit])
        previous = plan
    want, versions = logits(family, runner.layout, steps)
    pick = [runner.layout.yes, runner.layout.no]
    torch.testing.assert_close(torch.tensor(got), torch.stack(want)[:, pick].float(), atol=1e-5, rtol=1e-5)
    kv = runner.kv("cam/0")
    for layer, (keys, values) in enumerate(zip(versions.keys, versions.values, strict=True)):
        held = versions.current[-1][layer]
        assert (kv.keys[layer][:, : kv.rows] - keys[:, held]).abs().max() < EXACT
        assert (kv.values[layer][:, : kv.rows] - values[:, held]).abs().max() < EXACT
    runner.close_stream("cam/0")
    return steps


def moved(runner: TransformersEngine, plan: WindowPlan) -> torch.Tensor:
    """Last-layer values where the plan will place them; NaN where nothing is reused."""
    old = runner.kv(plan.stream).values[-1]
    out = old.new_full((old.shape[0], plan.rows, old.shape[2]), float("nan"))
    reused = np.flatnonzero(plan.source >= 0)
    out[:, reused] = old[:, plan.source[reused]]
    return out


def changed(runner: TransformersEngine, plan: WindowPlan, before: torch.Tensor) -> np.ndarray:
    """The reused rows that the engine computed after all."""
    now = runner.kv(plan.stream).values[-1][:, : plan.rows]
    differs = (now != before).any(-1).any(0) & ~before.isnan().any(-1).any(0)
    return np.flatnonzero(differs.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 4),
    policies=st.lists(st.sampled_from([*BY_NAME, "random", "random"]), min_size=3, max_size=8),
)
def test_any_chain_equals_the_version_expanded_oracle(
    family: str, seed: int, size: int, policies: list[str]
) -> None:
    chain(family, seed, size, policies)


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
@pytest.mark.parametrize("policy", ["cacheblend", "vlcache", "refresh", "random-k"])
def test_each_policy_equals_the_oracle(family: str, policy: str) -> None:
    steps = chain(family, 9, 3, [policy], windows=7, key_every=100)
    assert any(step.plan.select or step.plan.layers or len(step.plan.compute) > 1 for step in steps)
