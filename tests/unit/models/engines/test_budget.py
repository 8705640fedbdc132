"""Under a KV budget a sticky subset of streams is kept: cameras in a circle do not evict each other."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given, strategies as st

from lookout.models.engines.budget import KvBudget

SIZE = 10


def rounds(budget: KvBudget, streams: list[str], count: int, *, jitter: int = 0) -> float:
    """The share of requests, the first round left out, whose stream was still kept."""
    draw, hits, asked = random.Random(jitter), 0, 0
    for number in range(count):
        order = list(streams)
        if jitter:
            draw.shuffle(order)
        for stream in order:
            hits += number > 0 and budget.size(stream) > 0
            asked += number > 0
            assert budget.admit(stream, SIZE) is not None
            assert budget.total <= budget.limit
    return hits / asked


def least_recently_used(limit: int, streams: list[str], count: int) -> float:
    """The same share with the usual rule."""
    kept: OrderedDict[str, None] = OrderedDict()
    hits = asked = 0
    for number in range(count):
        for stream in streams:
            hits += number > 0 and stream in kept
            asked += number > 0
            kept[stream] = None
            kept.move_to_end(stream)
            while len(kept) * SIZE > limit:
                kept.popitem(last=False)
    return hits / asked


@pytest.mark.parametrize(("share", "least"), [(0.8, 0.7), (0.5, 0.4), (0.95, 0.9)])
@pytest.mark.parametrize("jitter", [0, 7])
def test_cameras_in_a_circle_keep_their_share_where_lru_loses_every_window(
    share: float, least: float, jitter: int
) -> None:
    streams = [f"cam-{number}/0" for number in range(20)]
    limit = int(share * len(streams)) * SIZE
    assert least_recently_used(limit, streams, 30) == 0
    assert rounds(KvBudget(limit), streams, 30, jitter=jitter) >= least


def test_cameras_that_are_gone_make_room() -> None:
    budget = KvBudget(8 * SIZE)
    rounds(budget, [f"old-{number}/0" for number in range(8)], 5)
    streams = [f"new-{number}/0" for number in range(8)]
    rounds(budget, streams, 3)
    assert rounds(budget, streams, 5) == 1


def test_a_slow_camera_does_not_hold_the_place_of_a_fast_one() -> None:
    budget = KvBudget(2 * SIZE)
    hits = 0
    for turn in range(60):
        for name in ["slow/0", "a/0", "b/0"] if turn % 6 == 0 else ["a/0", "b/0"]:
            hits += name != "slow/0" and budget.size(name) > 0
            assert budget.admit(name, SIZE) is not None
    assert hits > 60  # of 120; one of the two always keeps its place


def test_a_batch_keeps_its_place_and_what_does_not_fit_waits() -> None:
    budget = KvBudget(3 * SIZE)
    assert budget.admit("a/0", SIZE) == []
    assert budget.admit("b/0", SIZE, {"a/0"}) == []
    assert budget.admit("c/0", SIZE, {"a/0", "b/0"}) == []
    assert budget.admit("d/0", SIZE, {"a/0", "b/0", "c/0"}) is None
    assert budget.total == 3 * SIZE
    assert budget.admit("d/0", SIZE, {"a/0", "c/0"}) == ["b/0"]
    budget.release("d/0")
    budget.release("never/0")
    assert budget.total == 2 * SIZE


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), max_size=60), st.integers(1, 60))
def test_the_limit_holds_whatever_comes(requests: list[tuple[int, int]], limit: int) -> None:
    budget = KvBudget(limit)
    sizes: dict[str, int] = {}
    for number, size in requests:
        victims = budget.admit(str(number), size)
        assert (victims is None) == (size > limit)
        if victims is not None:
            sizes = {name: value for name, value in sizes.items() if name not in victims}
            sizes[str(number)] = size
        assert budget.total == sum(sizes.values()) <= limit
