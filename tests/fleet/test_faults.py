"""The whole fleet, two cameras, a few faults; the long form is `make test-faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.faults import outcomes, run
from tests.fleet.faults.faults import FEW

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(900)]


def test_one_outcome_each_whatever_happens(tmp_path: Path) -> None:
    plan = run.Plan(cameras=2, seconds=16, seed=3, pace=1.0, patience_s=200.0, lossy=(0.05,))
    footage = run.film(plan)
    said: list[str] = []
    undisturbed = run.undisturbed(plan, footage.segments, tmp_path / "undisturbed", said.append)
    committed, tally, memory = run.stormy(plan, footage.segments, FEW, tmp_path, said.append)
    score, faults = outcomes.score(
        plan.expected, committed, tally, footage.damaged, memory=memory, undisturbed=undisturbed
    )
    assert score.clean, (score, faults, said)
    assert memory.frames, said
    assert {"key", "incremental"} <= set(outcomes.bases(committed)), said
