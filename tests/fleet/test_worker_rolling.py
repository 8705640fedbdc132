"""Instances beside and after each other: releases that roll, settings that differ, state that is broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lookout.errors import StartupError
from tests.eventually import eventually
from tests.fleet.bench import Bench, Threaded, running

pytestmark = pytest.mark.fleet


@pytest.fixture
def bench(kafka: str, prefix: str) -> Iterator[Bench]:
    with Bench(kafka, prefix) as bench:
        yield bench


def test_a_partition_with_an_open_transaction_holds_no_other(bench: Bench) -> None:
    """The readiness message names it; the others are taken over and worked on."""
    group = f"{bench.prefix}group"
    owner = Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": f"{group}.gone"})
    owner.init_transactions(30.0)
    owner.begin_transaction()
    offsets = [TopicPartition(f"{bench.prefix}in", 2, 0)]
    with Consumer({"bootstrap.servers": bench.bootstrap, "group.id": group}) as consumer:
        owner.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30.0)
    for partition in range(bench.partitions):
        bench.send(f"cam-{partition}", 1, partition=partition)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 3)
        eventually(lambda: "taking over partitions: 2 (" in worker.health.blockers().get("worker", ""))
        assert worker.count("records_total") == 3
        owner.abort_transaction(30.0)
        eventually(lambda: worker.count("records_total") == 4)
        eventually(worker.health.ready)
    bench.assert_counted([f"cam-{partition}" for partition in range(bench.partitions)], 1)


def test_an_instance_with_another_grid_refuses_before_it_joins(bench: Bench) -> None:
    with running(bench.settings("toy-a", static_member=False)) as first:
        eventually(first.health.ready)
        canary = Threaded(bench.settings("toy-b", static_member=False), shared={"grid": "8x8"})
        eventually(lambda: not canary.thread.is_alive())
        assert isinstance(canary.error, StartupError)
        assert "grid is 4x4 there and 8x8 here" in str(canary.error)
        assert canary.count("takeovers_total") == 0
        assert first.count("takeovers_total") == bench.partitions
        assert first.health.ready()


def test_an_instance_that_loads_for_long_hands_over_when_it_stops(bench: Bench) -> None:
    """Not only when its session is over: that takes longer than this test may."""
    with running(bench.settings("toy-b", session_timeout_s=300.0)) as other:
        eventually(lambda: other.count("partitions") == bench.partitions)
        stopped = Threaded(bench.settings("toy-a", session_timeout_s=300.0), load_s=200.0)
        eventually(lambda: stopped.count("partitions") > 0 and other.count("partitions") < bench.partitions)
        stopped.stop()
        eventually(lambda: other.count("partitions") == bench.partitions)


def test_a_new_release_rolls_beside_the_old_one(bench: Bench) -> None:
    """Partitions move from one config digest to the other and back; every record counts once."""
    cameras = [f"cam-{number}" for number in range(8)]

    def send(first: int, last: int) -> None:
        for n in range(first, last + 1):
            for camera in cameras:
                bench.send(camera, n)
        bench.flush()

    send(1, 10)
    with running(bench.settings("toy-a", static_member=False), digest="old") as old:
        eventually(lambda: old.count("records_total") > 20)
        # A partition that moves before its first commit has no checkpoint to differ from.
        eventually(lambda: bench.counted(cameras, 1))
        with running(bench.settings("toy-b", static_member=False), digest="new") as new:
            eventually(lambda: new.count("takeovers_total") > 0)
            send(11, 20)
            eventually(lambda: new.count("records_total") > 0)
            eventually(lambda: bench.counted(cameras, 20))
            assert new.error is None
            assert any(new.handler.changed)
        send(21, 30)
        eventually(lambda: bench.counted(cameras, 30))
        assert old.error is None
    bench.assert_counted(cameras, 30)


def test_an_unreadable_checkpoint_costs_one_camera_its_state(bench: Bench) -> None:
    for camera in ("well", "broken"):
        bench.send(camera, 1, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 2)
    producer = Producer({"bootstrap.servers": bench.bootstrap})
    producer.produce(f"{bench.prefix}state", b"\xff\xff\xff", key="broken", partition=1)
    producer.flush(30.0)
    for camera in ("well", "broken"):
        bench.send(camera, 2, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 2)
        assert worker.count("checkpoints_unreadable_total") == 1
    found = bench.outputs()
    assert [each["count"] for each in found["well"]] == [1, 2]
    assert [each["count"] for each in found["broken"]] == [1, 1]


def test_an_unreadable_checkpoint_is_set_aside_once_even_if_no_record_follows(bench: Bench) -> None:
    """It was told again at each takeover: its letter waited for the next record."""
    bench.send("broken", 1, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 1)
    producer = Producer({"bootstrap.servers": bench.bootstrap})
    producer.produce(f"{bench.prefix}state", b"\xff\xff\xff", key="broken", partition=1)
    assert producer.flush(30.0) == 0
    with running(bench.settings()) as worker:
        eventually(lambda: bench.read("dlq"))
        assert worker.count("checkpoints_unreadable_total") == 1
    assert bench.read("state")[-1].value() is None
    with running(bench.settings()) as worker:
        eventually(worker.health.ready)
        assert worker.count("checkpoints_unreadable_total") == 0


def test_a_camera_that_is_gone_for_days_is_forgotten(bench: Bench) -> None:
    bench.send("gone", 1, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 1)
    with running(bench.settings(forget_after_days=1e-6)) as worker:
        eventually(lambda: worker.count("cameras_forgotten_total") == 1)
    last = [each for each in bench.read("state") if each.key() == b"gone"][-1]
    assert last.value() is None
    assert bench.outputs()["gone"][-1] == {"forgotten": 1}
