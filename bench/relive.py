"""`python -m bench.relive`: how long cameras of a lost prefill pod are behind, by a simulation.

Simulated: the pods' time. Batches are chosen by prefill's own `choose_windows`; partitions are moved as the
sticky assignor moves them, to the pods that have the fewest. Assumed: an evenly loaded fleet whose pods
compute `BUSY` of their time, and a group that needs `REBALANCE_S` after the session has run out; a key
window costs `KEY` times one that reuses KV.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lookout.services.prefill.batcher import KeyRoom, choose_windows
from lookout.services.prefill.settings import PrefillSettings

STRIDE_S = 2.0
BUSY = 0.7  # the chart's busyShare
KEY = 5.0
REBALANCE_S = 3.0
OVERHEAD_S = 0.005  # of a batch
SLOTS = 32  # cameras computed at the same time, and windows of a batch
LONGEST_S = 900.0
ROWS = 100  # of a window that reuses KV; only their ratio to a key window's counts
#: key windows of a batch as prefill had it before they were bounded by their time
BEFORE = 1


@dataclass(slots=True)
class Plan:
    """What `choose_windows` reads of a plan."""

    stream: str
    parent: object | None
    key: float

    @property
    def computed(self) -> int:
        """Rows that are computed."""
        return ROWS if self.parent is not None else round(self.key * ROWS)


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
    first_s: float = 0.0  # of the first answer, once the camera is another pod's

    def arrive(self, now: float) -> None:
        """Windows that are complete by now."""
        while self.next_s <= now:
            self.waiting.append(self.next_s)
            self.next_s += STRIDE_S


@dataclass(frozen=True, slots=True)
class Relive:
    """Seconds from losing a pod.

    Attributes:
        first_s: Until each of its cameras has an outcome again.
        caught_up_s: Until no camera of the fleet is behind.
    """

    first_s: float
    caught_up_s: float


def relive_s(
    pods: int, cameras: int, partitions: int, *, key_limit: int | None = None, notice_s: float | None = None
) -> float | None:
    """Seconds from losing one pod until no camera of the fleet is behind; None: it is never caught up.

    Args:
        pods: Pods before.
        cameras: Cameras of all pods.
        partitions: Partitions, which have the same number of cameras each.
        key_limit: Key windows of a batch; None: as many as prefill's defaults allow.
        notice_s: Until its partitions are given to others; None: its session runs out, as after a kill.
    """
    found = relive(pods, cameras, partitions, key_limit=key_limit, notice_s=notice_s)
    return None if found is None else found.caught_up_s


def relive(
    pods: int,
    cameras: int,
    partitions: int,
    *,
    key_limit: int | None = None,
    notice_s: float | None = None,
    busy: float = BUSY,
    key: float = KEY,
) -> Relive | None:
    """What follows from losing one pod; None: its cameras are never caught up with.

    Args:
        pods: Pods before.
        cameras: Cameras of all pods.
        partitions: Partitions, which have the same number of cameras each.
        key_limit: Key windows of a batch; None: as many as prefill's defaults allow.
        notice_s: Until its partitions are given to others; None: its session runs out, as after a kill.
        busy: Share of its time that each pod computes before.
        key: What a key window costs, in windows that reuse KV.
    """
    counts = [partitions // pods + (number < partitions % pods) for number in range(pods)]
    share = cameras / partitions
    window_s = busy * STRIDE_S / (cameras / pods)
    lost, survivors = counts[0], counts[1:]
    moved = [0] * len(survivors)
    for _ in range(lost):
        target = min(range(len(survivors)), key=lambda pod: survivors[pod] + moved[pod])
        moved[target] += 1
    taken_over_s = REBALANCE_S + (_default("session_timeout_s") if notice_s is None else notice_s)
    times = [
        _pod(round(own * share), round(more * share), window_s, key_limit, taken_over_s, key=key)
        for own, more in set(zip(survivors, moved, strict=True))
    ]
    found = [time for time in times if time is not None]
    if len(found) < len(times):
        return None
    return Relive(max(time.first_s for time in found), max(time.caught_up_s for time in found))


def waited_s(pods: int, cameras: int, load_s: float) -> float | None:
    """Seconds until no camera of a restarted pod is behind that gets its own partitions back, once its model
    is loaded; None: they are never caught up with.
    """
    own = round(cameras / pods)
    found = _pod(0, own, BUSY * STRIDE_S / own, None, load_s)
    return None if found is None else found.caught_up_s


def _default(setting: str) -> Any:
    return PrefillSettings.model_fields[setting].default


def key_room(key_limit: int | None, window_s: float) -> KeyRoom:
    """How many key windows a batch of the simulated pod may have."""
    if key_limit is not None:
        return KeyRoom(key_limit)
    room = KeyRoom(rows=_default("batch_rows"), delay_s=PrefillSettings.key_delay_s)
    room.measure(ROWS, window_s)
    return room


def _pod(
    own: int, more: int, window_s: float, key_limit: int | None, taken_over_s: float, *, key: float = KEY
) -> Relive | None:
    """When none of a pod's cameras is behind, `more` of which it has taken over."""
    draw = random.Random(0)
    cameras = [Camera(f"own-{number}", draw.uniform(0, STRIDE_S), True) for number in range(own)]
    new = [Camera(f"new-{number}", draw.uniform(0, STRIDE_S), False) for number in range(more)]
    now, pods_cameras, keys, taken = 0.0, cameras, key_room(key_limit, window_s), new
    while now < LONGEST_S:
        if new and now >= taken_over_s:
            pods_cameras, new = [*cameras, *new], []
        for camera in pods_cameras:
            camera.arrive(now)
            if camera.waiting and camera.waiting[0] < now - 2 * STRIDE_S:
                camera.behind_until = now
        last = max((camera.behind_until for camera in pods_cameras), default=0.0)
        if not new and now > max(last, taken_over_s) + 10 * STRIDE_S:
            first_s = max((camera.first_s for camera in taken), default=0.0)
            return Relive(max(first_s, taken_over_s), max(last, taken_over_s))
        now += _batch(pods_cameras, window_s, keys, key, now) or 0.01
    return None


def _batch(cameras: Sequence[Camera], window_s: float, keys: KeyRoom, key: float, now: float) -> float:
    """Run the next batch of those that wait longest; returns its seconds."""
    lanes = sorted((camera for camera in cameras if camera.waiting), key=lambda camera: camera.waiting[0])
    lanes = lanes[:SLOTS]
    requests: list[Any] = [Request(Plan(lane.name, lane if lane.warm else None, key)) for lane in lanes]
    chosen = [lanes[index] for index in choose_windows(requests, SLOTS, keys)]
    if not chosen:
        return 0.0
    seconds = OVERHEAD_S + sum(window_s * (1 if lane.warm else key) for lane in chosen)
    for lane in chosen:
        lane.waiting.popleft()
        lane.first_s = lane.first_s or now + seconds
        lane.warm = True
    return seconds


def main() -> None:
    """Simulate and print; the last line is JSON."""
    figures = {
        "relive_s_1000_before": relive_s(10, 1000, 120, key_limit=BEFORE),
        "relive_s_1000": relive_s(10, 1000, 120),
        "planned_before": relive_s(10, 1000, 120, key_limit=BEFORE, notice_s=0.0),
        "planned": relive_s(10, 1000, 120, notice_s=0.0),
    }
    print(json.dumps({name: value and round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
