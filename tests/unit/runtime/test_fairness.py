"""Shares of a device between owners whose requests wait."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from lookout.runtime.fairness import FairShares

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
    # By their weights acme has a third of a second, globex one: two thirds on average.
    acme, globex = shares.part("acme"), shares.part("globex")
    assert acme is not None
    assert globex is not None
    assert (acme.share, acme.fair, acme.owners) == (pytest.approx(0.5), pytest.approx(1.0), 2)
    assert (globex.share, globex.fair) == (pytest.approx(0.5), pytest.approx(1 / 3))
    clock.now = 2000.0
    assert shares.shares() == {}
    assert shares.part("acme") is None


def excess(shares: FairShares, owner: str, *, alone: bool = False) -> bool:
    part = shares.part(owner, alone=alone)
    return part is not None and part.share > part.fair


@given(
    st.dictionaries(st.sampled_from(OWNERS), st.floats(0.01, 100), min_size=2),
    st.dictionaries(st.sampled_from(OWNERS), st.floats(0.2, 5), min_size=3),
    st.dictionaries(st.sampled_from((*OWNERS, "hooli")), st.floats(0.01, 100)),
)
@settings(max_examples=100, deadline=None)
def test_whoever_was_given_most_has_too_much_and_whoever_was_given_least_has_not(
    here: dict[str, float], weights: dict[str, float], elsewhere: dict[str, float]
) -> None:
    """Of the owners of this device, by weight, over all devices. Others are nobody here."""
    shares = FairShares(lambda owner: weights.get(owner, 1.0), Clock())
    shares.charge(here, 1)
    shares.learn({name: here.get(name, 0.0) + elsewhere.get(name, 0.0) for name in {*here, *elsewhere}})
    shares.take_unsent()
    given_work = {owner: (work + elsewhere.get(owner, 0.0)) / weights[owner] for owner, work in here.items()}
    if max(given_work.values()) > min(given_work.values()) * (1 + 1e-6):
        assert excess(shares, max(given_work, key=given_work.__getitem__))
        assert not excess(shares, min(given_work, key=given_work.__getitem__))
    part = shares.part(next(iter(here)))
    assert part is not None
    assert part.owners == len(here)


def test_what_small_owners_leave_makes_no_other_one_an_owner_of_too_much() -> None:
    """The part of an equal division, a sixth, would be less than what the middle one uses."""
    shares = FairShares(clock=Clock())
    shares.charge({"large": 14.0, "middle": 4.0, "a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}, 40)
    assert [name for name in ("large", "middle", "a") if excess(shares, name)] == ["large"]


def test_work_elsewhere_counts_until_it_is_lost_and_alone_it_does_not() -> None:
    clock = Clock()
    shares = FairShares(clock=clock)
    shares.charge({"acme": 2.0, "globex": 3.0}, 5)
    assert excess(shares, "globex")
    assert not shares.together
    sent = shares.take_unsent()
    assert sent == {"acme": 2.0, "globex": 3.0}
    shares.learn({"acme": 12.0, "globex": 3.0})
    assert shares.together
    assert (excess(shares, "acme"), excess(shares, "globex")) == (True, False)
    assert (excess(shares, "acme", alone=True), excess(shares, "globex", alone=True)) == (False, True)
    clock.now += 10.0  # sums fade as this device's own work does
    part = shares.part("acme")
    assert part is not None
    assert part.share == pytest.approx(0.8)
    shares.charge({"acme": 1.0}, 1)
    shares.lose(shares.take_unsent())
    assert (shares.together, excess(shares, "acme")) == (False, True)
    assert shares.take_unsent() == {"acme": pytest.approx(1.0)}


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
    assert len(shares._unsent) < 100
