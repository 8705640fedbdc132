"""A whole fleet whose directory is behind three Sentinels; its primary is killed while cameras play."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lookout.local import Fleet
from lookout.v1.verdicts_pb2 import Verdict
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.redis_sentinel import SERVICE, Watched

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(1200)]

PLAN = run.Plan(cameras=6, seconds=40)
HALF_S = PLAN.seconds / 2


def test_a_lost_primary_costs_no_outcome(tmp_path: Path) -> None:
    settings = {
        "model_dir": str(run.MODEL),
        "stride_s": str(run.STRIDE_S),
        "window_s": str(run.WINDOW_S),
        "redis_sentinel": SERVICE,
    }
    with (
        Watched(tmp_path / "redis", sentinels=3) as watched,
        Fleet(
            tmp_path / "fleet",
            redis_url=watched.url,
            settings=settings,
            stage_settings={"decode": {"silence_s": "86400"}},
            open_servers=True,
        ) as fleet,
    ):
        run.watch(fleet.bootstrap)
        film = run.film(PLAN).segments
        first = run.Publisher(fleet.bootstrap, [piece for piece in film if piece.start_s < HALF_S], None)
        rest = run.Publisher(fleet.bootstrap, [piece for piece in film if piece.start_s >= HALF_S], None)
        first.start()
        eventually(lambda: outcomes.read(fleet.bootstrap).outcomes >= PLAN.cameras, every=0.2)
        watched.primary.kill()
        rest.start()  # so the second half of every camera is played without a primary and on the next one
        eventually(lambda: watched.primary_port != watched.primary.port, every=0.2)

        def ended() -> bool:
            news = fleet.supervise()
            assert not news, news  # no service dies of it
            there = outcomes.read(fleet.bootstrap).outcomes
            return first.done and rest.done and there >= PLAN.expected

        eventually(ended, seconds=600.0, every=1.0)
        committed = outcomes.read(fleet.bootstrap)
    assert committed.outcomes == PLAN.expected
    assert all(len(verdicts) == 1 for verdicts in committed.verdicts.values())
    assert all(len(alerts) == 1 for alerts in committed.alerts.values())
    answers = Counter(verdict.outcome for verdict, *_ in committed.verdicts.values())
    assert answers == {Verdict.OUTCOME_ANSWERED: PLAN.expected}
