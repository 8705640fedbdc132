"""The autoscaler's arithmetic over load that rises, falls, jumps and wobbles.

KEDA hands the triggers to a HorizontalPodAutoscaler; what that computes is replayed here from Kubernetes' own
description (docs: Horizontal Pod Autoscaling, "Algorithm details"), with the numbers that the chart writes. A
stage is a queue: work arrives in pods' worth, so many pods work on it, what is left over waits.
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

CHART = Path(__file__).parents[3] / "charts/lookout"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())["prefill"]["autoscaling"]
TEMPLATE = (CHART / "templates/autoscaling.yaml").read_text()
STEP_S = 15  # of the autoscaler
STRIDE_S = 2.0  # of a camera
KEY = 5.0  # a key window costs as much as so many that reuse KV
TOLERANCE = 0.1
MOST = 20


def _number(pattern: str) -> int:
    match = re.search(pattern, TEMPLATE, re.S)
    assert match is not None, pattern
    return int(match[1])


UP_WAIT_S = _number(r"scaleUp:\s+stabilizationWindowSeconds: (\d+)")
DOWN_WAIT_S = _number(r"scaleDown:\s+stabilizationWindowSeconds: (\d+)")
DOWN_EVERY_S = _number(r"type: Pods, value: 1, periodSeconds: (\d+)")
RATE_S = 60 * _number(r"busy_seconds_total[^\n]*\[(\d+)m\]")
TWOFOLD = _number(r"clamp_max\([^\n]*, (\d+)\)")

Rule = Callable[["Stage"], int]


@dataclass
class Stage:
    """A stage of some pods; load and backlog in seconds of one pod's work."""

    pods: int = 1
    backlog: float = 0.0
    load: float = 0.0
    busy: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_S // STEP_S))

    def work(self, load: float) -> None:
        """One step of the autoscaler's clock."""
        self.load = load
        done = min(self.pods * STEP_S, self.backlog + load * STEP_S)
        self.backlog += load * STEP_S - done
        self.busy.append(done / STEP_S)

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that waits."""
        return self.backlog / max(self.load, 1e-6)


def chart_rule(stage: Stage) -> int:
    """Pods that the two triggers of the chart ask for."""
    busy = math.ceil(sum(stage.busy) / len(stage.busy) / VALUES["busyShare"] - 1e-9)
    ratio = min(stage.lag_s / VALUES["lagSeconds"], TWOFOLD)
    lag = stage.pods if abs(ratio - 1) <= TOLERANCE else math.ceil(stage.pods * ratio)
    share = sum(stage.busy) / len(stage.busy) / VALUES["busyShare"] / stage.pods
    return max(stage.pods if abs(share - 1) <= TOLERANCE else busy, lag)


def lag_alone(stage: Stage) -> int:
    """Pods by the average of the lag alone, ten seconds of it for each pod."""
    return math.ceil(stage.lag_s / 10)


def replay(rule: Rule, load: Sequence[float], pods: int = 1) -> tuple[list[int], list[float]]:
    """Pods and lag at every step."""
    stage = Stage(pods)
    wishes: deque[tuple[int, int]] = deque()
    counts, lags, down_at = [], [], -DOWN_EVERY_S
    for step, arriving in enumerate(load):
        now = step * STEP_S
        stage.work(arriving)
        wish = min(MOST, max(1, rule(stage)))
        wishes.append((now, wish))
        while wishes[0][0] <= now - max(UP_WAIT_S, DOWN_WAIT_S):
            wishes.popleft()
        up = min(count for at, count in wishes if at > now - UP_WAIT_S)
        down = max(count for at, count in wishes if at > now - DOWN_WAIT_S)
        if up > stage.pods:
            stage.pods = min(up, 2 * stage.pods)
        elif down < stage.pods and now - down_at >= DOWN_EVERY_S:
            stage.pods, down_at = stage.pods - 1, now
        counts.append(stage.pods)
        lags.append(stage.lag_s)
    return counts, lags


def turns(counts: Sequence[int]) -> int:
    """How often the number of pods changes its direction."""
    steps = [b - a for a, b in pairwise(counts) if b != a]
    return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


HOUR = 3600 // STEP_S


@pytest.mark.parametrize("load", [0.3, 1.0, 3.2, 6.9, 10.0])
def test_steady_load_has_a_fixed_point_that_carries_it(load: float) -> None:
    counts, lags = replay(chart_rule, [load] * 3 * HOUR)
    assert len(set(counts[2 * HOUR :])) == 1
    assert load <= counts[-1] <= math.ceil(load / VALUES["busyShare"]) + 1
    assert max(lags[HOUR:]) == 0
    assert turns(counts) <= 1, "it may add pods for what waited at the start, and take them away once"


def test_rising_and_falling_load_is_followed_without_oscillation() -> None:
    rise = [1 + 7 * step / (2 * HOUR) for step in range(2 * HOUR)]
    counts, lags = replay(chart_rule, [*rise, *[8.0] * HOUR, *reversed(rise), *[1.0] * 2 * HOUR], pods=2)
    assert turns(counts) == 1
    assert counts[-1] == 2
    assert max(lags) < 2 * VALUES["lagSeconds"]


def test_a_jump_is_caught_up_with() -> None:
    counts, lags = replay(chart_rule, [*[1.0] * HOUR, *[8.0] * 2 * HOUR], pods=2)
    assert max(lags) < 300
    assert lags[-1] == 0
    assert max(counts) <= MOST


def test_wobbling_load_does_not_move_pods() -> None:
    dice = random.Random(1)
    counts, _ = replay(chart_rule, [5 * dice.uniform(0.85, 1.15) for _ in range(6 * HOUR)], pods=8)
    assert len(set(counts[HOUR:])) <= 2
    assert turns(counts) <= 1


def test_pods_that_are_busy_and_not_behind_stay() -> None:
    """Lag alone sends them away: a fleet that keeps up has none."""
    steady = [4.0] * 2 * HOUR
    counts, lags = replay(chart_rule, steady, pods=6)
    assert min(counts) == 6
    assert max(lags) == 0
    by_lag, behind = replay(lag_alone, steady, pods=6)
    assert min(by_lag) < 4
    assert max(behind) > VALUES["lagSeconds"]


def kv_losses(loads: Sequence[float], counts: Sequence[int]) -> list[tuple[float, float]]:
    """What each pod that leaves costs and saves, in seconds of one pod's work.

    Its cameras begin a key window elsewhere, which costs `KEY` of their strides; it saves the time until as
    many pods run again.
    """
    losses = []
    for step in range(1, len(counts)):
        if counts[step] < counts[step - 1]:
            again = next((n for n in range(step, len(counts)) if counts[n] >= counts[step - 1]), len(counts))
            share = loads[step] / counts[step - 1]
            losses.append((share * STRIDE_S * KEY, (again - step) * STEP_S))
    return losses


@pytest.mark.parametrize("seed", range(4))
def test_a_pod_that_leaves_saves_more_than_the_kv_that_goes_with_it(seed: int) -> None:
    """Days of load that wobbles around a rise and a fall, with another factor each minute."""
    dice = random.Random(seed)
    wave = [4 + 3 * math.sin(2 * math.pi * step / (8 * HOUR)) for step in range(24 * HOUR)]
    loads = [load * dice.uniform(0.7, 1.3) for load in wave[:: 60 // STEP_S] for _ in range(60 // STEP_S)]
    counts, _ = replay(chart_rule, loads, pods=6)
    losses = kv_losses(loads, counts)
    assert losses
    assert all(saved > 5 * lost for lost, saved in losses), losses


def test_pods_by_lag_alone_leave_and_come_back() -> None:
    steady = [4.0] * 6 * HOUR
    assert len(kv_losses(steady, replay(lag_alone, steady, pods=6)[0])) > 1
    assert kv_losses(steady, replay(chart_rule, steady, pods=6)[0]) == []


def _agents(cameras: int, room: int, pods: int) -> int:
    """Agents in the end, by the query of the chart: pods that are full leave the others without room."""
    query = TEMPLATE[TEMPLATE.index("query: (sum(lookout_agent_cameras") :]
    match = re.search(r'threshold: "([0-9.]+)"', query)
    assert match
    threshold = float(match[1])
    for _ in range(50):
        pulled = min(cameras, pods * room)
        value = (pulled + (cameras - pulled)) / room
        if abs(value / threshold / pods - 1) > TOLERANCE:
            pods = max(1, math.ceil(value / threshold - 1e-9))
    return pods


@pytest.mark.parametrize("room", [1, 2, 11, 43, 200])
@pytest.mark.parametrize("pods", [1, 7, 30])
def test_no_camera_is_left_without_an_agent(room: int, pods: int) -> None:
    """Whatever runs before, and within what the autoscaler tolerates."""
    for cameras in (1, room, room + 1, 5 * room + 1, 1000):
        agents = _agents(cameras, room, pods)
        assert agents * room >= cameras
        assert agents == _agents(cameras, room, agents), "it stays"
        assert agents <= math.ceil(cameras / room / 0.8 / (1 - TOLERANCE)) + 1
