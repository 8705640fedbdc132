"""Partitions are added to a whole fleet that watches real footage while its services are killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from lookout.local import Fleet
from lookout.runtime.worker.growth import Moves, add_partitions
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import Stage, camera_topics
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.faults import kill, supervised_for

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(900)]

BEFORE, AFTER = 4, 7
#: as long as it takes until the group reads partitions that were added, and a while behind
PLAN = run.Plan(cameras=6, seconds=60, seed=5, pace=1.0, patience_s=300.0)
#: a producer that sees new partitions at once, not after five minutes
OPTIONS = {"topic.metadata.refresh.interval.ms": 1000}
MOVED = "moved"


class Follower:
    """`lookout topics grow`: adds partitions, and tells old ones which cameras left, until it is ended."""

    def __init__(self, fleet: Fleet) -> None:
        self._options = {"bootstrap.servers": fleet.bootstrap}
        self.changed = add_partitions(self._options, AFTER)
        self.moved: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        moves = Moves(self._options)
        while not self._stop.is_set():
            self.moved += [departure.camera for departure in moves.follow(1.0)]
        moves.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60.0)


def test_every_window_has_one_outcome_while_partitions_are_added_and_services_killed(tmp_path: Path) -> None:
    """Cameras that move answer all their windows, in two epochs, with one gap between for each watch."""
    segments, chance, said = run.film(PLAN).segments, random.Random(PLAN.seed), list[str]()
    with run.fleet(tmp_path) as fleet:
        run.watch(fleet.bootstrap)
        publisher = run.Publisher(fleet.bootstrap, segments, PLAN.pace, lambda bootstrap: OPTIONS)
        publisher.start()
        supervised_for(fleet, 8.0)
        follower = Follower(fleet)
        assert set(follower.changed) == {topic.name for topic in camera_topics()}
        for stage in (Stage.DECODE, Stage.PREFILL, Stage.PRUNE_ENCODE, Stage.ALERTS, Stage.DECODE):
            said.append(kill(stage)(fleet, chance))
            supervised_for(fleet, chance.uniform(2.0, 6.0))
        committed = _all_outcomes(fleet, publisher, follower)
        follower.end()
    moved = set(follower.moved)
    assert moved, said
    assert [key for key, verdicts in committed.verdicts.items() if len(verdicts) > 1] == []
    verdicts = [verdict for (verdict,) in committed.verdicts.values()]
    answered = Counter(
        (verdict.camera, verdict.watch, verdict.end.ToMilliseconds())
        for verdict in verdicts
        if verdict.outcome == Verdict.OUTCOME_ANSWERED
    )
    ends = {outcomes.WALL_MS + round(run.STRIDE_S * 1000) * n for n in range(1, PLAN.strides + 1)}
    cameras = {f"cam-{number:02d}" for number in range(PLAN.cameras)}
    watches = {f"watch-{number}" for number in range(len(run.QUESTIONS))}
    assert set(answered) == {(c, w, e) for c in cameras for w in watches for e in ends}
    assert set(answered.values()) == {1}
    others = Counter(
        (verdict.camera, verdict.watch, verdict.reason)
        for verdict in verdicts
        if verdict.outcome != Verdict.OUTCOME_ANSWERED
    )
    assert others == {(camera, watch, MOVED): 1 for camera in moved for watch in watches}


def _all_outcomes(fleet: Fleet, publisher: run.Publisher, follower: Follower) -> outcomes.Committed:
    """What is committed once everything that is expected is, gaps of moved cameras too, or patience ends."""
    deadline = time.monotonic() + PLAN.patience_s
    before = -1
    while time.monotonic() < deadline:
        supervised_for(fleet, run.SETTLE_S)
        committed = outcomes.read(fleet.bootstrap)
        expected = PLAN.expected + len(run.QUESTIONS) * len(set(follower.moved))
        if publisher.done and committed.outcomes == before >= expected:
            break
        before = committed.outcomes
    return committed
