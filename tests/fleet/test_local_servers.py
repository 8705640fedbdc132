"""The real Kafka and Redis of a local fleet: addresses stay, data survives, two run at once, none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lookout.local import (
    KafkaServer,
    LocalError,
    PortTakenError,
    RedisServer,
    create_topics,
    reconcile_topics,
)
from lookout.local.java import find_java
from lookout.local.processes import remove_orphans
from lookout.local.startup_cache import startup_cache
from lookout.wire import MAX_SEGMENT_BYTES, SEGMENTS, WATCHES, all_topics
from tests.eventually import eventually

pytestmark = pytest.mark.fleet


def publish(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 17 << 20})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failures == []


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None, f"only {len(found)} of {count} records came back"
            if message.error() is None:
                found.append(message.value())
        return found
    finally:
        consumer.close()


def create(bootstrap: str, name: str) -> None:
    assert create_topics(bootstrap, topics=[replace(SEGMENTS, name=name, pipeline=False)]) == [name]


@pytest.mark.long
def test_kafka_keeps_address_and_data_through_stop_and_kill(own_kafka: KafkaServer, prefix: str) -> None:
    topic, address = prefix + "kept", own_kafka.bootstrap
    create(address, topic)
    publish(address, topic, [b"one"])
    own_kafka.restart()
    publish(address, topic, [b"two"])
    own_kafka.kill()
    assert not own_kafka.alive
    own_kafka.start()
    assert own_kafka.bootstrap == address
    assert read(address, topic, 2) == [b"one", b"two"]


@pytest.mark.long
def test_the_broker_starts_from_javas_cache(own_kafka: KafkaServer) -> None:
    cache = startup_cache(find_java())
    if cache is None:
        pytest.skip("this Java has no cache for starts: Java 25 is the first")
    assert str(cache) in Path(f"/proc/{own_kafka.pid}/maps").read_text()


def test_kafka_takes_a_full_segment(kafka: str, prefix: str) -> None:
    create(kafka, prefix + "large")
    publish(kafka, prefix + "large", [bytes(16 << 20)])
    assert len(read(kafka, prefix + "large", 1)[0]) == 16 << 20


@pytest.mark.long
def test_two_brokers_run_at_once(kafka: str, own_kafka: KafkaServer) -> None:
    assert own_kafka.bootstrap != kafka
    create(own_kafka.bootstrap, "only-here")
    assert "only-here" not in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=60).topics


def test_redis_comes_back_empty_at_the_same_address(own_redis: RedisServer) -> None:
    address = own_redis.url
    redis.Redis.from_url(address).set("place", "here")
    own_redis.kill()
    own_redis.start()
    assert own_redis.url == address
    assert redis.Redis.from_url(address).get("place") is None


def test_a_given_port_that_is_taken_is_named(own_redis: RedisServer) -> None:
    with pytest.raises(PortTakenError, match=str(own_redis.port)), RedisServer(port=own_redis.port):
        pass


def test_a_broken_setting_shows_the_end_of_the_log() -> None:
    with (
        pytest.raises(LocalError, match=r"num\.io\.threads"),
        KafkaServer(properties={"num.io.threads": "none"}),
    ):
        pass


@pytest.mark.long
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_interrupted(number: signal.Signals) -> None:
    program = (
        "import signal, time\nfrom lookout.local import KafkaServer, RedisServer\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "with KafkaServer() as k, RedisServer() as r:\n"
        "    print(k.pid, r.pid, k.folder, r.folder, flush=True)\n    time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        *pids, kafka_folder, redis_folder = owner.stdout.readline().split()
        os.kill(owner.pid, number)
    for pid in map(int, pids):
        eventually(lambda pid=pid: not psutil.pid_exists(pid))
    if number == signal.SIGKILL:
        remove_orphans()
    assert not Path(kafka_folder).exists()
    assert not Path(redis_folder).exists()


def test_every_topic_of_the_table_is_created_once(own_kafka: KafkaServer) -> None:
    names = {topic.name for topic in all_topics()}
    assert set(create_topics(own_kafka.bootstrap, 3)) == names
    assert create_topics(own_kafka.bootstrap, 3) == []
    found = AdminClient({"bootstrap.servers": own_kafka.bootstrap}).list_topics(timeout=60).topics
    assert len(found[SEGMENTS.name].partitions) == 3
    assert len(found[WATCHES.name].partitions) == 1


@pytest.mark.long
def test_topics_of_an_older_release_are_brought_up_to_the_table(own_kafka: KafkaServer) -> None:
    old = [
        replace(SEGMENTS, broker_time=False, max_message_bytes=1024, retention_ms=90 * 60_000),
        replace(WATCHES, broker_time=False, keep_replaced_ms=0),
    ]
    create_topics(own_kafka.bootstrap, topics=old, extra={"compression.type": "producer"})
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    eventually(lambda: {topic.name for topic in old} <= set(admin.list_topics(timeout=60).topics))
    wrong = reconcile_topics(own_kafka.bootstrap, [SEGMENTS, WATCHES])
    assert [phrase.split("=", 1)[0] for phrase in wrong] == [
        "camera.segments.v1 message.timestamp.type",
        "camera.segments.v1 compression.type",
        "camera.segments.v1 max.message.bytes",
        "watches.v1 message.timestamp.type",
        "watches.v1 compression.type",
        "watches.v1 min.compaction.lag.ms",
    ]
    assert reconcile_topics(own_kafka.bootstrap, [SEGMENTS, WATCHES]) == []
    resource = ConfigResource(ResourceType.TOPIC, SEGMENTS.name)
    [found] = admin.describe_configs([resource]).values()
    assert found.result()["retention.ms"].value == str(90 * 60_000)  # its owner's choice


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
def test_a_small_record_that_becomes_a_large_one_is_refused(broker: KafkaServer, codec: str) -> None:
    """By the broker, whose limit is of the bytes that readers get."""
    create_topics(broker.bootstrap, topics=[replace(SEGMENTS, name=f"bomb-{codec}", pipeline=False)])
    options = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "log_level": 0}
    producer = Producer({**options, "message.max.bytes": 64 << 20})
    refused: list[KafkaError | None] = []
    for size in (MAX_SEGMENT_BYTES, 24 << 20):
        producer.produce(f"bomb-{codec}", bytes(size), on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(240.0) == 0
    taken, bomb = refused
    assert taken is None
    assert bomb is not None
    assert bomb.code() == KafkaError.MSG_SIZE_TOO_LARGE
