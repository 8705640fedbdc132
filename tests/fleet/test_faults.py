"""The whole fleet, two cameras, a few faults; the long form is `make test-faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.faults import outcomes, run
from tests.fleet.faults.faults import FEW

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(900)]


def test_one_outcome_each_whatever_happens(tmp_path: Path) -> None:
    plan = run.Plan(cameras=2, seconds=16, seed=3, pace=1.0, patience_s=200.0)
    segments = run.film(plan)
    said: list[str] = []
    calm = run.calm(plan, segments, tmp_path / "calm", said.append)
    assert calm.outcomes == plan.expected, said
    stormy = run.stormy(plan, segments, FEW, tmp_path / "stormy", said.append)
    score, differences = outcomes.compare(plan.expected, calm, stormy)
    assert score.clean, (score, differences, said)
