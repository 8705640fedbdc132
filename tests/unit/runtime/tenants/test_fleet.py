"""Shares of devices over several instances, told over a real Redis."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from lookout.local import RedisServer
from lookout.runtime.fairness import FairShares
from lookout.runtime.net import without_security
from lookout.runtime.tenants import FleetShares, RedisWork, fleet_numbers
from lookout.wire import REDIS_KEYS
from tests.eventually import eventually
from tests.redis_cluster import RedisCluster


class Clock:
    """Settable Unix seconds, at the begin of an epoch of the sums."""

    def __init__(self) -> None:
        self.now = 6000.0

    def __call__(self) -> float:
        return self.now


class Instance:
    """One instance's device and what tells the others of it."""

    def __init__(self, client: Any, clock: Clock) -> None:
        self.shares = FairShares(clock=clock)
        self.fleet = FleetShares(self.shares, RedisWork(client, clock))

    def excess(self, tenant: str) -> bool:
        part = self.shares.part(tenant)
        return part is not None and part.share > part.fair


def together(shares: FairShares) -> float:
    (family,) = fleet_numbers(shares)
    return float(family.samples[0].value)


def test_instances_learn_what_the_others_compute(redis_client: redis.Redis) -> None:
    clock = Clock()
    first, second = Instance(redis_client, clock), Instance(redis_client, clock)
    first.shares.charge({"acme": 2.0, "globex": 3.0}, 5)
    second.shares.charge({"acme": 4.0}, 4)
    assert (first.excess("acme"), first.excess("globex"), together(first.shares)) == (False, True, 0.0)
    second.fleet.exchange()
    first.fleet.exchange()
    assert (first.excess("acme"), first.excess("globex"), together(first.shares)) == (True, False, 1.0)
    first.fleet.exchange()  # nothing is told twice
    part = first.shares.part("acme")
    assert part is not None
    assert part.share == pytest.approx(6 / 9)


@pytest.mark.parametrize("begin", [6000.0, 6055.0, 6059.9])
def test_sums_fade_as_the_instances_own_work_does(redis_client: redis.Redis, begin: float) -> None:
    """Also from one epoch of the sums to the next, and after nobody computed for a while."""
    clock = Clock()
    clock.now = begin
    instance, work = Instance(redis_client, clock), RedisWork(redis_client, clock)
    for _ in range(30):
        instance.shares.charge({"acme": 1.0}, 1)
        instance.fleet.exchange()
        clock.now += 1.0
    [own] = instance.shares._recent.values()
    factor = 0.5 ** (1 / 10)  # `_recent` is of the last charge
    # What is left out of two epochs ago is less than a sixtieth of what was new then.
    assert work.exchange({})["acme"] == pytest.approx(own * factor, rel=0.01)
    clock.now += 10.0
    assert work.exchange({})["acme"] == pytest.approx(own * factor / 2, rel=0.02)
    clock.now += 200.0
    assert work.exchange({}) == {}
    assert together(instance.shares) == 1.0
    instance.fleet.exchange()
    assert together(instance.shares) == 0.0


def test_keys_have_the_releases_prefix_and_expire(redis_client: redis.Redis) -> None:
    RedisWork(redis_client, Clock()).exchange({"acme": 1.0})
    [key] = redis_client.keys()
    assert key.decode().startswith(REDIS_KEYS)
    assert 0 < redis_client.ttl(key) <= 120


def test_without_redis_an_instance_is_fair_alone_and_says_so_once(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    clock = Clock()
    instance, other = (Instance(redis_client, clock) for _ in range(2))
    instance.shares.charge({"acme": 2.0, "globex": 3.0}, 5)
    other.shares.charge({"acme": 4.0}, 4)
    other.fleet.exchange()
    instance.fleet.exchange()
    assert instance.excess("acme")
    redis_server.stop()
    try:
        with capture_logs() as events:
            for _ in range(3):
                instance.fleet.exchange()
        assert [event["log_level"] for event in events] == ["warning"]
        assert "fair on this instance only" in events[0]["event"]
        assert (instance.excess("acme"), instance.excess("globex")) == (False, True)
        assert together(instance.shares) == 0.0
        instance.shares.charge({"globex": 0.5}, 1)
    finally:
        redis_server.start()
    with capture_logs() as events:
        instance.fleet.exchange()
        instance.fleet.exchange()
    assert ["again" in event["event"] for event in events] == [True]
    assert together(instance.shares) == 1.0
    # What was computed meanwhile was not told before; an emptied Redis has nothing else.
    assert RedisWork(redis_client, clock).exchange({}) == {"globex": 0.5}


@pytest.mark.parametrize("value", ["text", None])
def test_what_others_wrote_there_stops_nothing(redis_client: redis.Redis, value: str | None) -> None:
    clock = Clock()
    instance = Instance(redis_client, clock)
    instance.fleet._work.exchange({"acme": 1.0})
    [key] = redis_client.keys()
    if value is None:
        redis_client.set(key, "text")
    else:
        redis_client.hset(key, "globex", value)
    with capture_logs() as events:
        instance.fleet.exchange()
    # A number of one tenant that is not one is left out; a key of another type is removed, and named.
    assert len(events) == (value is None)
    clock.now += 180.0  # two epochs later nobody reads it
    instance.shares.charge({"acme": 1.0}, 1)
    instance.fleet.exchange()
    assert together(instance.shares) == 1.0


def test_it_exchanges_by_itself_until_it_is_stopped(redis_client: redis.Redis) -> None:
    clock = Clock()
    instance = Instance(redis_client, clock)
    instance.shares.charge({"acme": 1.0}, 1)

    def run(name: str, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    instance.fleet.start(run)
    eventually(lambda: together(instance.shares) == 1.0)
    instance.fleet.stop()
    assert instance.fleet._thread is not None
    assert not instance.fleet._thread.is_alive()


@pytest.mark.slow
def test_instances_learn_over_a_redis_cluster(tmp_path: Path) -> None:
    """All keys of tenants are in one slot: a pipeline of them is possible."""
    clock = Clock()
    security = without_security().model_copy(update={"redis_cluster": True})
    with (
        RedisCluster(tmp_path / "nodes") as cluster,
        security.redis_client(cluster.url, retry=None) as client,
    ):
        first, second = RedisWork(client, clock), RedisWork(client, clock)
        first.exchange({"acme": 5.0})
        clock.now += 60.0
        assert second.exchange({"acme": 6.0}) == {"acme": pytest.approx(6.0 + 5.0 / 64)}
