"""A thousand slides drift nowhere: KV is moved un-rotated and rotated once, so errors have no memory."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lookout.models.engines import Question, WindowRequest, load_engine
from lookout.models.windows import Planner, Policy, WindowPlan, WindowSettings
from tests.tiny_models import FAMILIES, build
from tests.unit.models.engines.scenes import block

KINDS = (torch.float64, torch.float32, torch.bfloat16)
QUESTION = (Question("q", "?"),)


def deviations(family: str, policy: Policy, slides: int) -> dict[torch.dtype, list[float]]:
    """Relative error of all KV against float64 (the same bfloat16 weights) after each slide."""
    out: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    with tempfile.TemporaryDirectory() as folder:
        build(family, Path(folder), dtype=torch.bfloat16, text={"num_hidden_layers": 3})
        engines = {kind: load_engine(folder, dtype=kind) for kind in KINDS}
    layout = engines[torch.float64].layout
    if layout.label is not None:  # without key windows labels only grow
        layout = replace(layout, label=replace(layout.label, width=5))
    planner = Planner(layout, WindowSettings(2, policy, key_every=10**9))
    plan: WindowPlan | None = None
    blocks = [block(family, "cam/0", 0, frames=2)]
    for number in range(slides):
        plan = planner.plan(blocks, plan, key=number == 0)
        request = WindowRequest(plan, blocks, QUESTION)
        held = {}
        for kind, engine in engines.items():
            engine.run([request])[0].unwrap()
            kv = engine.kv("cam/0")
            held[kind] = torch.stack([part[:, : kv.rows].double() for part in (*kv.keys, *kv.values)])
        for kind, values in out.items():
            error = (held[kind] - held[torch.float64]).norm() / held[torch.float64].norm()
            values.append(float(error))
        blocks = [*blocks, block(family, "cam/0", number + 1, frames=2)][-2:]
    return out


def check(family: str, policy: Policy, slides: int) -> str:
    told = deviations(family, policy, slides)
    part = max(5, slides // 10)
    report = []
    for kind, bound in ((torch.float32, 2e-6), (torch.bfloat16, 0.05)):
        first, last = max(told[kind][5 : 5 + part]), max(told[kind][-part:])
        report.append(f"{family} {policy.value} {kind}: {first:.2e} early, {last:.2e} late")
        assert last < bound, report
        assert last < 1.5 * first, report
    return "; ".join(report)


@pytest.mark.slow
def test_forty_slides_do_not_drift() -> None:
    check("qwen2_5_vl", Policy.REFRESH, 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", [Policy.REFRESH, Policy.REUSE_ALL])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_slides_do_not_drift(
    family: str, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(family, policy, 1000)
    with capsys.disabled():
        print(f"\n{report}")
