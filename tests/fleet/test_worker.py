"""The worker on a real broker: every record counts once, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from lookout.runtime.worker import Downstream
from tests.eventually import eventually
from tests.fleet.bench import Bench, running

pytestmark = pytest.mark.fleet


@pytest.fixture
def bench(kafka: str, prefix: str) -> Iterator[Bench]:
    with Bench(kafka, prefix) as bench:
        yield bench


def test_records_are_counted_in_order_and_resumed(bench: Bench) -> None:
    cameras = [f"cam-{number}" for number in range(6)]
    for n in range(1, 11):
        for camera in cameras:
            bench.send(camera, n)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 60)
        eventually(worker.health.ready)
    for n in range(11, 16):
        for camera in cameras:
            bench.send(camera, n)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 30)
        assert {camera for camera, _ in worker.handler.loads} == set(cameras)
        assert all(known for _, known in worker.handler.loads)
        assert len(worker.handler.deliveries) == 30
    bench.assert_counted(cameras, 15)


def test_outputs_stay_in_their_partition(bench: Bench) -> None:
    for partition in range(bench.partitions):
        bench.send("roaming", 1, partition=partition)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == bench.partitions)
    assert sorted(message.partition() for message in bench.read("out")) == list(range(bench.partitions))


def test_bad_records_become_dead_letters_and_the_stream_goes_on(bench: Bench) -> None:
    bench.send("cam", 1, partition=1)
    bench.send("cam", 2, partition=1, do="bad")
    bench.send("cam", 2, partition=1, do="boom")
    bench.send(None, 2, partition=1)
    bench.send("cam", 2, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 5)
        assert worker.count("dead_letters_total", reason="bad") == 1
    letters = bench.read("dlq")
    facts = [{name: value.decode() for name, value in message.headers()} for message in letters]
    assert [each["lookout-reason"] for each in facts] == ["bad", "internal-error", "no-camera"]
    assert [each["lookout-source-offset"] for each in facts] == ["1", "2", "3"]
    assert {each["lookout-source-topic"] for each in facts} == {f"{bench.prefix}in"}
    assert {each["lookout-stage"] for each in facts} == {"toy"}
    assert [json.loads(message.value()) for message in letters[:2]] == [
        {"n": 2, "do": "bad"},
        {"n": 2, "do": "boom"},
    ]
    assert all(message.partition() == 1 for message in letters)
    outputs = bench.outputs()["cam"]
    assert [each.get("total") for each in outputs] == [1, None, None, 3]
    assert [each["rejected"] for each in outputs if "rejected" in each] == ["bad", "internal-error"]


def test_an_output_that_kafka_refuses_becomes_a_dead_letter(bench: Bench) -> None:
    bench.send("cam", 1, partition=0)
    bench.send("cam", 2, partition=0, do="huge")
    bench.send("cam", 2, partition=0)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 3)
        assert worker.given_up() >= 1
    (letter,) = bench.read("dlq")
    assert dict(letter.headers())["lookout-reason"] == b"output-refused"
    assert [each.get("total") for each in bench.outputs()["cam"]] == [1, None, 3]


def test_only_the_finished_prefix_is_committed(bench: Bench) -> None:
    bench.send("slow", 1, partition=0, do="away")
    bench.send("quick", 1, partition=0)
    bench.send("other", 1, partition=1)
    bench.flush()
    with running(bench.settings(retry_max_s=0.1)) as worker:
        worker.handler.away = True
        eventually(lambda: worker.count("records_total") == 1 and ("quick", 1) in worker.handler.seen)
        eventually(lambda: worker.count("retries_total", kind="transient") >= 2)
        assert set(bench.outputs()) == {"other"}
        worker.handler.away = False
        eventually(lambda: worker.count("records_total") == 3)
    bench.assert_counted(["slow", "quick", "other"], 1)


def test_a_full_store_holds_its_partition_back(bench: Bench) -> None:
    with running(bench.settings()) as worker:
        worker.handler.full = {2}
        eventually(lambda: worker.health.ready() and worker.count("paused_partitions") == 1)
        bench.send("held", 1, partition=2)
        bench.send("free", 1, partition=3)
        bench.flush()
        eventually(lambda: worker.count("records_total") == 1)
        assert worker.handler.seen == [("free", 1)]
        worker.handler.full = set()
        eventually(lambda: worker.count("records_total") == 2)
    bench.assert_counted(["held", "free"], 1)


def test_time_counts_only_where_everything_is_read(bench: Bench) -> None:
    bench.send("cam", 1, partition=0)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 1 and "cam" in worker.handler.ticks)
    bench.send("other", 1, partition=1, sleep=0.5)
    bench.send("other", 2, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        worker.handler.silent = {"cam", "other"}
        eventually(lambda: not worker.handler.silent)
        eventually(lambda: "silent" in bench.outputs()["other"][-1])
    assert bench.outputs()["cam"][1:] == [{"silent": 1}]
    assert bench.outputs()["other"][2:] == [{"silent": 2}]


def test_a_stage_that_has_read_everything_is_not_behind(bench: Bench) -> None:
    """Its input is written in transactions, whose end takes an offset of its own, which nobody commits."""
    producer = Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": f"{bench.prefix}input"})
    producer.init_transactions(60.0)
    producer.begin_transaction()
    producer.produce(f"{bench.prefix}in", b'{"n": 1}', key="cam", partition=1)
    producer.commit_transaction(60.0)
    with running(bench.settings()) as worker:
        shown = worker.metrics.registry.get_sample_value
        labels = {"stage": "toy", "partition": "1"}
        eventually(lambda: worker.count("records_total") == 1)
        for name in ("lookout_lag_records", "lookout_lag_seconds"):
            eventually(lambda name=name: shown(name, labels) == 0, seconds=60.0)  # type: ignore[misc]


def test_what_another_group_has_read_can_be_followed(bench: Bench) -> None:
    """A store keeps what the next stage has not read: its committed offsets, partition by partition."""
    heard: list[dict[int, int]] = []
    settings = bench.settings()
    assert settings.group is not None
    watcher = Downstream(
        settings, settings.group, f"{bench.prefix}in", lambda offsets: heard.append(dict(offsets)), 0.1
    )
    watcher.start()
    try:
        eventually(lambda: heard)
        assert heard[-1] == {}
        bench.send("cam", 1, partition=1)
        bench.send("cam", 2, partition=1)
        bench.flush()
        with running(settings):
            eventually(lambda: heard[-1] == {1: 2})
        assert dict(watcher.committed()) == {1: 2}
    finally:
        watcher.stop()
