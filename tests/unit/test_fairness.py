"""Shares of a device between owners whose requests wait."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from lookout.fairness import FairShares

OWNERS = ("acme", "globex", "initech")


class Clock:
    """Settable seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(shares: FairShares, waiting: list[tuple[str, float]], batch: int) -> Counter[str]:
    """Compute the next batch; what it cost each owner."""
    places = shares.order([owner for owner, _ in waiting])[:batch]
    work = Counter[str]()
    for place in places:
        work[waiting[place][0]] += waiting[place][1]  # type: ignore[assignment]
    waiting[:] = [request for place, request in enumerate(waiting) if place not in places]
    shares.charge(work, len(places))
    return work


@pytest.mark.slow
@given(
    st.data(),
    st.integers(1, 8),
    st.dictionaries(st.sampled_from(OWNERS), st.floats(0.2, 5), min_size=2, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_owners_that_always_wait_are_within_a_batch_of_their_parts(
    data: st.DataObject, batch: int, weights: dict[str, float]
) -> None:
    """However many requests each has, and whatever each request costs."""
    shares = FairShares(weights.__getitem__)
    counts = {owner: data.draw(st.integers(batch, 40), label=owner) for owner in weights}
    costs = st.floats(0.01, 1.0)
    waiting: list[tuple[str, float]] = []
    given_work, largest = Counter[str](), 0.0
    for _ in range(40):
        for owner, count in counts.items():
            have = sum(1 for name, _ in waiting if name == owner)
            waiting += [(owner, data.draw(costs)) for _ in range(count - have)]
        work = serve(shares, waiting, batch)
        given_work.update(work)
        largest = max(largest, work.total())
    times = [given_work[owner] / weight for owner, weight in weights.items()]
    assert max(times) - min(times) <= largest / min(weights.values()) + 1e-9


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_an_owner_alone_gets_everything_in_order_of_arrival(costs: list[float], batch: int) -> None:
    shares, waiting = FairShares(), [("acme", cost) for cost in costs]
    served: list[float] = []
    while waiting:
        before = list(waiting)
        serve(shares, waiting, batch)
        served += [cost for _, cost in before[: len(before) - len(waiting)]]
    assert served == costs
    assert shares.part("acme") is None


def test_three_cameras_beside_nine_hundred_wait_for_no_more_than_a_batch() -> None:
    shares = FairShares()
    waiting = [("acme", 1.0)] * 900
    for _ in range(20):
        serve(shares, waiting, 8)
        waiting += [("acme", 1.0)] * 8
    waiting += [("globex", 1.0)] * 3
    assert serve(shares, waiting, 8)["globex"] == 3


def test_what_was_not_used_is_not_saved_up() -> None:
    shares = FairShares()
    for _ in range(50):
        serve(shares, [("acme", 1.0)] * 8, 8)
    waiting = [("acme", 1.0)] * 100 + [("globex", 1.0)] * 100
    work = Counter[str]()
    for _ in range(10):
        work += serve(shares, waiting, 8)
    assert abs(work["acme"] - work["globex"]) <= 8


def test_of_one_owner_the_order_is_that_of_arrival() -> None:
    shares = FairShares()
    owners = ["acme", "globex", "acme", "acme", "globex"]
    order = shares.order(owners)
    for name in set(owners):
        places = [place for place in order if owners[place] == name]
        assert places == sorted(places)
    assert sorted(order) == [0, 1, 2, 3, 4]


def test_shares_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    shares = FairShares({"acme": 3.0, "globex": 1.0}.__getitem__, clock)
    shares.charge({"acme": 8.0}, 8)
    assert shares.part("acme") is None
    clock.now = 1000.0
    shares.charge({"acme": 1.0, "globex": 1.0}, 2)
    part = shares.part("acme")
    assert part is not None
    assert (part.share, part.fair, part.owners) == (pytest.approx(0.5), 0.75, 2)
    clock.now = 2000.0
    assert shares.shares() == {}


def test_invented_names_take_no_memory_for_ever() -> None:
    clock = Clock()
    shares = FairShares(clock=clock)
    for number in range(9000):
        shares.charge({f"t{number}": 1e-3}, 1)
        shares.order([f"t{number}", "acme"])
        shares.charge({"acme": 10.0}, 1)
        clock.now += 10.0
    assert len(shares._times) <= 4100
    assert len(shares._recent) < 100
