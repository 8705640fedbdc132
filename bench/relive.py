"""How long cameras of a killed prefill pod are behind: a simulation.

Simulated: the pods' time. Batches are chosen by prefill's own `choose_windows`; partitions are moved as the
sticky assignor moves them, to the pods that have the fewest. Assumed: an evenly loaded fleet
whose pods compute `BUSY` of their time, key windows that cost `KEY` times a window that reuses KV, and a
group that needs `REBALANCE_S` after the session has run out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lookout.services.prefill.batcher import choose_windows
from lookout.services.prefill.settings import PrefillSettings

STRIDE_S = 2.0
BUSY = 0.7  # the chart's busyShare
KEY = 5.0
REBALANCE_S = 3.0
OVERHEAD_S = 0.005  # of a batch
SLOTS = 32  # cameras computed at the same time, and windows of a batch
LONGEST_S = 900.0


@dataclass(slots=True)
class Plan:
    """What `choose_windows` reads of a plan."""

    stream: str
    parent: object | None


@dataclass(slots=True)
class Request:
    """What `choose_windows` reads of a request."""

    plan: Plan
    keep: bool = True


@dataclass(slots=True)
class Camera:
    """A camera on a pod: when its windows became complete that are not answered yet, oldest first."""

    name: str
    next_s: float
    warm: bool
    waiting: deque[float] = field(default_factory=deque)
    behind_until: float = 0.0

    def arrive(self, now: float) -> None:
        """Windows that are complete by now."""
        while self.next_s <= now:
            self.waiting.append(self.next_s)
            self.next_s += STRIDE_S


def relive_s(
    pods: int, cameras: int, partitions: int, *, key_limit: int | None = None, notice_s: float | None = None
) -> float | None:
    """Seconds from losing one pod until no camera of the fleet is behind; None: it is never caught up.

    Args:
        pods: Pods before.
        cameras: Cameras of all pods.
        partitions: Partitions, which have the same number of cameras each.
        key_limit: Key windows of a batch; None: prefill's default.
        notice_s: Until its partitions are given to others; None: its session runs out, as after a kill.
    """
    counts = [partitions // pods + (number < partitions % pods) for number in range(pods)]
    share = cameras / partitions
    window_s = BUSY * STRIDE_S / (cameras / pods)
    lost, survivors = counts[0], counts[1:]
    moved = [0] * len(survivors)
    for _ in range(lost):
        target = min(range(len(survivors)), key=lambda pod: survivors[pod] + moved[pod])
        moved[target] += 1
    taken_over_s = REBALANCE_S + (_default("session_timeout_s") if notice_s is None else notice_s)
    key_limit = key_limit or _default("key_batch")
    times = [
        _pod(round(own * share), round(more * share), window_s, key_limit, taken_over_s)
        for own, more in set(zip(survivors, moved, strict=True))
    ]
    return None if any(time is None for time in times) else max(time for time in times if time is not None)


def waited_s(pods: int, cameras: int, load_s: float) -> float | None:
    """Seconds until no camera of a restarted pod is behind that gets its own partitions back, once its model
    is loaded; None: they are never caught up with.
    """
    own = round(cameras / pods)
    return _pod(0, own, BUSY * STRIDE_S / own, _default("key_batch"), load_s)


def _default(setting: str) -> Any:
    return PrefillSettings.model_fields[setting].default


def _pod(own: int, more: int, window_s: float, key_limit: int, taken_over_s: float) -> float | None:
    """Seconds until none of a pod's cameras is behind, `more` of which it has taken over."""
    draw = random.Random(0)
    cameras = [Camera(f"own-{number}", draw.uniform(0, STRIDE_S), True) for number in range(own)]
    new = [Camera(f"new-{number}", draw.uniform(0, STRIDE_S), False) for number in range(more)]
    now, pods_cameras = 0.0, cameras
    while now < LONGEST_S:
        if new and now >= taken_over_s:
            pods_cameras, new = [*cameras, *new], []
        for camera in pods_cameras:
            camera.arrive(now)
            if camera.waiting and camera.waiting[0] < now - 2 * STRIDE_S:
                camera.behind_until = now
        last = max((camera.behind_until for camera in pods_cameras), default=0.0)
        if not new and now > max(last, taken_over_s) + 10 * STRIDE_S:
            return max(last, taken_over_s)
        now += _batch(pods_cameras, window_s, key_limit) or 0.01
    return None


def _batch(cameras: Sequence[Camera], window_s: float, key_limit: int) -> float:
    """Run the next batch of those that wait longest; returns its seconds."""
    lanes = sorted((camera for camera in cameras if camera.waiting), key=lambda camera: camera.waiting[0])
    lanes = lanes[:SLOTS]
    requests: list[Any] = [Request(Plan(lane.name, lane if lane.warm else None)) for lane in lanes]
    chosen = [lanes[index] for index in choose_windows(requests, SLOTS, key_limit)]
    if not chosen:
        return 0.0
    seconds = OVERHEAD_S + sum(window_s * (1 if lane.warm else KEY) for lane in chosen)
    for lane in chosen:
        lane.waiting.popleft()
        lane.warm = True
    return seconds
