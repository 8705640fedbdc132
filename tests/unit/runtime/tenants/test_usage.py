"""What tenants use, counted by several instances over a real Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import generate_latest

from lookout.runtime.net import without_security
from lookout.runtime.observe import Metrics
from lookout.runtime.tenants import (
    AloneCounters,
    Counters,
    Quotas,
    RedisCounters,
    TenantUsage,
    read_quotas,
    tenant_numbers,
)
from lookout.runtime.tenants.quotas import NOUNS
from lookout.runtime.tenants.usage import REST, TENANTS
from tests.redis_cluster import RedisCluster

QUOTAS = read_quotas('{"acme": {"bytes": 100, "cameras": 2}, "none": {"bytes": 0, "cameras": 0}}')


class Clock:
    """Settable Unix seconds."""

    def __init__(self) -> None:
        self.now = 6000.0

    def __call__(self) -> float:
        return self.now


def usage(clock: Clock, counters: Counters | None = None, quotas: Quotas = QUOTAS) -> TenantUsage:
    return TenantUsage(quotas, ("bytes", "cameras"), counters, clock=clock)


def test_instances_count_together(redis_client: redis.Redis) -> None:
    clock = Clock()
    first, second = (usage(clock, RedisCounters(redis_client, clock)) for _ in range(2))
    first.add("acme", "bytes", 60)
    second.add("acme", "bytes", 60)
    assert first.refusal("acme") is None
    first.exchange()
    second.exchange()
    assert first.refusal("acme") is None  # it has not heard of the second one's yet
    first.exchange()
    for instance in (first, second):
        assert instance.refusal("acme") == (
            "quota: tenant 'acme' used its 100 bytes of segments in 60 s: wait for the next interval, or "
            "send or ask less, or raise bytes in LOOKOUT_TENANT_QUOTAS"
        )
        assert instance.refusal("globex") is None
    clock.now += 60
    assert first.refusal("acme") is None
    second.exchange()
    assert second.refusal("acme") is None


@pytest.mark.parametrize("alone", [True, False])
def test_cameras_that_send_keep_their_places(redis_client: redis.Redis, alone: bool) -> None:
    clock = Clock()
    instance = usage(clock, AloneCounters() if alone else RedisCounters(redis_client, clock))

    def sends(*cameras: str) -> list[str]:
        for camera in cameras:
            instance.refusal("acme", camera)
        clock.now += 1
        instance.exchange()
        return [camera for camera in cameras if instance.refusal("acme", camera) is None]

    assert sends("b", "c") == ["b", "c"]
    assert sends("a", "b", "c") == ["b", "c"]  # whatever their names
    assert "has its 2 cameras: stop a camera" in (instance.refusal("acme", "a") or "")
    clock.now += 61  # b is gone
    assert sends("c") == ["c"]
    assert sends("a", "c") == ["a", "c"]


def test_zero_refuses_at_once() -> None:
    instance = usage(Clock())
    assert "tenant 'none' used its 0 bytes" in (instance.refusal("none", "a") or "")


def test_without_redis_the_last_answer_and_its_own_counts_stand(redis_client: redis.Redis) -> None:
    class Broken:
        """A Redis that is gone."""

        def pipeline(self, **_: Any) -> Any:
            raise redis.ConnectionError("refused")

    clock = Clock()
    other, counters = usage(clock, RedisCounters(redis_client, clock)), RedisCounters(redis_client, clock)
    instance = usage(clock, counters)
    other.add("acme", "bytes", 70)
    other.exchange()
    instance.exchange()
    counters._client = Broken()
    instance.add("acme", "bytes", 20)
    instance.exchange()
    assert instance.refusal("acme") is None
    instance.add("acme", "bytes", 10)
    instance.exchange()
    assert instance.refusal("acme") is not None
    counters._client = redis_client
    instance.exchange()
    other.exchange()
    assert other.refusal("acme") is not None  # nothing that was counted meanwhile is lost


def test_what_others_wrote_there_stops_nothing(redis_client: redis.Redis) -> None:
    """The thread that exchanges counts is one that the service needs: it may not end."""
    clock = Clock()
    instance = usage(clock, RedisCounters(redis_client, clock))
    instance.add("acme", "bytes", 60)
    instance.exchange()
    [key] = redis_client.keys()
    redis_client.hset(key, "bytes:globex", "text")
    instance.add("acme", "bytes", 30)
    instance.add("globex", "bytes", 30)
    for _ in range(3):  # what Redis took is not added again
        instance.exchange()
    assert instance.refusal("acme") is None
    instance.add("acme", "bytes", 60)
    instance.exchange()
    assert instance.refusal("acme") is not None
    clock.now += 60
    instance.exchange()
    assert instance.refusal("acme") is None


def test_what_is_counted_is_not_counted_again_where_places_cannot_be_asked_for(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second it was added once more, until the tenant was over its quota."""
    clock = Clock()
    counters = RedisCounters(redis_client, clock)
    instance = usage(clock, counters)
    instance.add("acme", "bytes", 30)
    assert instance.refusal("acme", "gate") is None  # a camera of a limited tenant sends

    def slow(*_: object) -> frozenset[str]:
        raise redis.exceptions.TimeoutError("Timeout reading from socket")

    with monkeypatch.context() as patch:
        patch.setattr(counters, "without_place", slow)
        for _ in range(5):
            instance.exchange()
    instance.exchange()
    assert counters.exchange(int(clock.now // 60), 60, {}) == {("acme", "bytes"): 30.0}
    assert instance.refusal("acme", "gate") is None


def test_names_that_footage_invents_are_bounded_and_metrics_name_the_others() -> None:
    instance = usage(Clock())
    instance.add("acme", "bytes", 5)
    for number in range(6 * TENANTS):
        instance.add(f"t{number}", "bytes", 1)
    instance.add("acme", "bytes", 5)
    instance.refusal("none")
    assert len(instance.totals) <= len(NOUNS) * TENANTS + 1
    limited = usage(Clock(), quotas=read_quotas('{"*": {"cameras": 0}}'))
    for number in range(2 * TENANTS):
        assert limited.refusal(f"t{number}", "gate") is not None
    assert len(limited._sent) <= TENANTS + 1
    assert len(limited.refusals) <= TENANTS + 1
    metrics = Metrics("decode")
    metrics.show(lambda: tenant_numbers(instance))
    text = generate_latest(metrics.registry).decode()
    assert 'lookout_tenant_used_total{kind="bytes",tenant="acme"} 10.0' in text
    assert f'tenant="{REST}"' in text
    assert 'lookout_tenant_refused_total{quota="bytes",tenant="none"} 1.0' in text
    # Its first refusal is an increase: the series was there before.
    assert 'lookout_tenant_refused_total{quota="bytes",tenant="acme"} 0.0' in text


@pytest.mark.slow
def test_instances_count_together_over_a_redis_cluster(tmp_path: Path) -> None:
    """All keys of tenants are in one slot: a pipeline of them is possible."""
    security = without_security().model_copy(update={"redis_cluster": True})
    with RedisCluster(tmp_path / "nodes") as cluster, security.redis_client(cluster.url) as client:
        first, second = RedisCounters(client), RedisCounters(client)
        first.exchange(7, 60.0, {("acme", "bytes"): 5.0})
        assert second.exchange(7, 60.0, {("acme", "bytes"): 6.0}) == {("acme", "bytes"): 11.0}
        assert first.without_place("acme", 2, 60.0, ["a", "b", "c"]) == {"c"}
        assert second.without_place("acme", 2, 60.0, ["c", "a"]) == {"c"}
