"""What the topic table's settings are for, on a broker that cleans up as fast as it can."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.errors import RecordsGoneError, StartupError
from lookout.local import KafkaServer, LocalError, create_topics
from lookout.runtime.worker import RecordReader, ServiceSettings, Table, topic_reader
from lookout.runtime.worker.startup import check_kafka
from lookout.runtime.worker.topic_reader import BEGINNING, END, TopicReader
from lookout.services.controller import topics as topics_job
from lookout.services.prefill.watches import Watches
from lookout.streams.chains import KafkaPartition
from lookout.v1.watches_pb2 import Watch
from lookout.wire import ERASURES, FRAMES, SEGMENTS, TOKENS, WATCHES, Stage, Topic, state_topic, to_json
from tests.clock import at
from tests.eventually import eventually

pytestmark = pytest.mark.fleet

EAGER = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}
SMALL = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
DAY_MS = 24 * 3_600_000
PLACES = 6
#: seconds between the reads: by then the fetch after the last record has reached the broker, which holds it
HELD_S = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker whose cleaners hardly ever rest."""
    with KafkaServer(properties=EAGER) as server:
        yield server


@pytest.fixture
def eager(server: KafkaServer) -> str:
    return server.bootstrap


class Topics:
    """A topic as the table has it, and a twin without the setting in question."""

    def __init__(self, bootstrap: str, topic: Topic, twin: Topic) -> None:
        self.topic, self.twin = topic.name, f"twin.{topic.name}"
        topics = [replace(topic, pipeline=False), replace(twin, name=self.twin, pipeline=False)]
        create_topics(bootstrap, topics=topics, extra=SMALL)
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self.settings = ServiceSettings(mode="local", bootstrap=bootstrap)  # type: ignore[arg-type]
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "offsets"})

    def put(self, key: str, value: bytes, timestamp: int = 0) -> None:
        """To both, in a log segment of its own."""
        for name in (self.topic, self.twin):
            self._producer.produce(name, value, key=key, timestamp=timestamp)
        assert self._producer.flush(60.0) == 0
        time.sleep(0.15)

    def first(self, name: str) -> int:
        """The lowest offset that is left."""
        return int(self._reader.get_watermark_offsets(TopicPartition(name, 0), timeout=60.0)[0])

    def versions(self, name: str, key: str) -> tuple[bytes, ...]:
        """What a service that starts now reads."""
        table = Table(self.settings, name)
        table.start()
        try:
            return table.view().history[key]
        finally:
            table.stop()

    def close(self) -> None:
        self._reader.close()


def test_a_reader_follows_partitions_and_topics_that_are_added(
    eager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each known partition from its offset, what is added from its beginning."""
    monkeypatch.setattr(topic_reader, "LOOK_S", 0.0)
    admin, producer = AdminClient({"bootstrap.servers": eager}), Producer({"bootstrap.servers": eager})

    def put(topic: str, partition: int, *values: bytes) -> None:
        eventually(lambda: partition in producer.list_topics(topic).topics[topic].partitions)
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60.0) == 0

    admin.create_topics([NewTopic("grows", 1, 1)])["grows"].result()
    put("grows", 0, b"read before", b"new")
    settings = ServiceSettings(mode="local", bootstrap=eager)  # type: ignore[arg-type]
    with closing(TopicReader(settings, "test", options={"auto.offset.reset": "earliest"})) as reader:
        reader.follow({"grows": BEGINNING, "later": END}, {("grows", 0): 1}, 30.0)
        assert [message.value() for message in reader.to_the_end()] == [b"new"]
        admin.create_partitions([NewPartitions("grows", 2)])["grows"].result()
        admin.create_topics([NewTopic("later", 1, 1)])["later"].result()
        put("grows", 1, b"added")
        put("later", 0, b"later")
        values = set[bytes | None]()

        def whole() -> bool:
            if (message := reader.record(0.1)) is not None:
                values.add(message.value())
            return values == {b"added", b"later"}

        eventually(whole)
        assert reader.positions == {("grows", 0): 2, ("grows", 1): 1, ("later", 0): 1}


def test_what_is_being_written_when_a_command_begins_is_shown_once_committed(eager: str) -> None:
    admin = AdminClient({"bootstrap.servers": eager})
    admin.create_topics([NewTopic("written", 1, 1)])["written"].result()
    producer = Producer({"bootstrap.servers": eager, "transactional.id": "still-writing"})
    producer.init_transactions(60.0)

    def write(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce("written", value, partition=0)
        assert producer.flush(60.0) == 0

    write(b"old")
    producer.commit_transaction(60.0)
    write(b"open")
    with reading(eager, ["written"], Position()) as reader:
        producer.commit_transaction(60.0)
        seen = list[bytes | None]()

        def shown() -> bool:
            if (message := reader.poll(0.1)) is not None:
                seen.append(message.value())
            return bool(seen)

        eventually(shown)
    assert seen == [b"open"]


def test_segments_outlive_their_producers_old_clock(eager: str) -> None:
    """Retention counts from when Kafka got a segment: what waits in the topic can be decoded (again)."""
    topics = Topics(eager, SEGMENTS, replace(SEGMENTS, broker_time=False))
    old = round(time.time() * 1000) - 2 * DAY_MS
    topics.put("yard", b"first", old)
    for _ in range(2):  # twice gone: in between the broker has looked at every topic
        before = topics.first(topics.twin)
        topics.put("yard", b"more", old)
        eventually(lambda before=before: topics.first(topics.twin) > before)
    assert topics.first(topics.topic) == 0
    rereader = RecordReader(topics.settings)
    try:
        assert [record.value for record in rereader.read(topics.topic, 0, [0])] == [b"first"]
    finally:
        rereader.close()
        topics.close()


@pytest.mark.parametrize(("partition", "offset"), [(0, -1), (0, -2), (0, 2**53), (4, 0), (10**9, 0)])
def test_a_place_that_no_record_has_is_told_at_once(server: KafkaServer, partition: int, offset: int) -> None:
    """Others wait for the reader meanwhile: it has one client."""
    create_topics(server.bootstrap, topics=[replace(FRAMES, pipeline=False)])
    rereader = RecordReader(ServiceSettings(mode="local", bootstrap=server.bootstrap))  # type: ignore[arg-type]
    try:
        with pytest.raises(RecordsGoneError):
            rereader.read(FRAMES.name, partition, [offset])
    finally:
        rereader.close()


def test_reading_from_place_to_place_waits_for_no_empty_fetch(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the client's own setting, with which Kafka holds the fetch of the place before."""
    create_topics(server.bootstrap, 2, topics=[replace(FRAMES, name="places")])
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for partition in (0, 1):
        producer.produce("places", b"a record", partition=partition)
    assert producer.flush(60.0) == 0
    settings = ServiceSettings(mode="local", bootstrap=server.bootstrap)  # type: ignore[arg-type]

    def empty_polls() -> int:
        """Of the polls, each of which waits for half a second, those that brought nothing."""
        messages = list[object]()
        rereader = RecordReader(settings)
        take = rereader._reader.next

        def following(timeout_s: float) -> Message | topic_reader.End | None:
            messages.append(take(timeout_s))
            return messages[-1]

        monkeypatch.setattr(rereader._reader, "next", following)
        try:
            rereader.read("places", 0, [0])
            messages.clear()
            for number in range(PLACES):
                time.sleep(HELD_S)
                rereader.read("places", number % 2, [0])
            return messages.count(None)
        finally:
            rereader.close()

    assert empty_polls() < PLACES / 2
    monkeypatch.setattr(topic_reader, "WAIT_MS", 2000)
    assert empty_polls() > PLACES / 2


def test_a_range_of_a_partition_that_does_not_exist_is_told_at_once(server: KafkaServer) -> None:
    settings = ServiceSettings(mode="local", bootstrap=server.bootstrap)  # type: ignore[arg-type]
    create_topics(server.bootstrap, topics=[replace(TOKENS, pipeline=False), ERASURES])
    with pytest.raises(RecordsGoneError, match="no partition 1000"):
        KafkaPartition(settings, 1000)
    with KafkaPartition(settings, 0) as log:
        assert log.blocks(2**53 - 1, 2**53) == ([], True)


def test_a_version_in_force_outlives_compaction_and_restarts(eager: str) -> None:
    """One that begins tomorrow replaces today's only tomorrow, also for a service that starts meanwhile."""
    topics = Topics(eager, WATCHES, replace(WATCHES, keep_replaced_ms=0))
    now = round(time.time() * 1000)
    versions = [
        Watch(id="fall", version=1, question="Is anyone lying?"),
        Watch(id="fall", version=2, question="Is anyone on the ground?", active_from=at(now + DAY_MS)),
    ]
    for watch in versions:
        topics.put("fall", to_json(watch), timestamp=1)  # a clock that stands at nought

    def forgotten() -> bool:
        topics.put("other", b"{}")
        return len(topics.versions(topics.twin, "fall")) == 1

    eventually(forgotten)
    table = Table(topics.settings, topics.topic)
    table.start()
    try:
        watches = Watches(table.view)
        found = [watches.active("cam", at).watches for at in (now, now + 2 * DAY_MS)]
        assert [[watch.version for watch in each] for each in found] == [[1], [2]]
    finally:
        table.stop()
        topics.close()


def test_a_state_topic_holds_live_state_and_what_was_written_lately(server: KafkaServer) -> None:
    """A thousand times faster than the table says. Beside replaced checkpoints the ends of old transactions
    have to go, which consumers never see and a takeover reads all the same.
    """
    table = state_topic(Stage.DECODE)
    quick = {name: str(int(value) // 1000) for name, value in table.config().items() if name.endswith(".ms")}
    quick["min.cleanable.dirty.ratio"] = table.config()["min.cleanable.dirty.ratio"]
    create_topics(server.bootstrap, topics=[replace(table, pipeline=False)], extra=quick)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "state-writer"})
    producer.init_transactions(60.0)

    def commit(times: int) -> None:
        for number in range(times):
            producer.begin_transaction()
            producer.produce(table.name, bytes(200), key=f"cam-{number % 5}", partition=0)
            producer.commit_transaction(60.0)

    def size() -> int:
        return sum(log.stat().st_size for log in server.folder.rglob(f"{table.name}-0/*.log"))

    commit(300)  # without a cleaner, ten times what has to be left
    recent = 20 * (300 + 78)  # written until it comes round: a checkpoint and the end of its transaction
    eventually(lambda: (commit(5), time.sleep(0.3), size() < recent)[-1])


def test_a_broker_without_tiered_storage_refuses_topics_that_ask_for_it(eager: str) -> None:
    with pytest.raises(LocalError, match=r"(?i)remote.storage|tiered"):
        create_topics(eager, topics=[replace(SEGMENTS, name="tiered")], extra=SEGMENTS.tiered(6))
    result = CliRunner().invoke(app, ["doctor", "--bootstrap", eager, "--json"])
    (row,) = [row for row in map(json.loads, result.stdout.splitlines()) if "tiered storage" in str(row)]
    assert "the broker has none" in str(row)


def test_a_retention_that_an_existing_topic_has_not_is_named(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chart's job changes no hours: a value that would have no effect is refused."""
    monkeypatch.setenv("LOOKOUT_MODE", "local")
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", server.bootstrap)
    create_topics(server.bootstrap)
    counts = ("--partitions=4", "--replication=1")
    assert topics_job.main([*counts, "--retention-hours=tokens.v1=6"]) == topics_job.MISCONFIGURED
    said = capsys.readouterr().err
    assert "tokens.v1 has retention.ms=86400000, but topics.retentionHours asks for 21600000" in said
    assert "kafka-configs.sh --alter --entity-type topics --entity-name tokens.v1" in said
    topics_job.main([*counts, "--check", "--retention-hours=tokens.v1=24"])
    assert "tokens.v1 has retention.ms" not in capsys.readouterr().err


@pytest.mark.long
def test_topics_of_an_older_release_are_changed_by_the_job(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version 0.2 let producers decide about compression, which the services of today refuse."""
    monkeypatch.setenv("LOOKOUT_MODE", "local")
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", own_kafka.bootstrap)
    create_topics(own_kafka.bootstrap)
    settings = ServiceSettings(mode="local", bootstrap=own_kafka.bootstrap)  # type: ignore[arg-type]
    older = {"compression.type": "producer", "retention.ms": str(2 * DAY_MS)}
    set_topic(own_kafka.bootstrap, SEGMENTS.name, older)
    with pytest.raises(StartupError, match=r"compression\.type=producer, must be uncompressed"):
        check_kafka(settings, [SEGMENTS])
    counts = ("--partitions=4", "--replication=1")
    assert topics_job.main([*counts, "--check"]) == topics_job.MISCONFIGURED  # which changes nothing
    assert "camera.segments.v1 compression.type=producer" in capsys.readouterr().err
    assert topics_job.main(counts) == 0
    assert (
        capsys.readouterr().out == "changed camera.segments.v1 compression.type: producer to uncompressed\n"
    )
    assert check_kafka(settings, [SEGMENTS]) == 4
    assert topic_settings(own_kafka.bootstrap, SEGMENTS.name)["retention.ms"] == older["retention.ms"]
    assert topics_job.main(counts) == 0
    assert capsys.readouterr().out == ""


def set_topic(bootstrap: str, name: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic, and wait until the broker shows them."""
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (done,) = admin.incremental_alter_configs([resource], request_timeout=60).values()
    done.result()
    eventually(lambda: settings.items() <= topic_settings(bootstrap, name).items())


def topic_settings(bootstrap: str, name: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name)], request_timeout=60
    ).values()
    return {key: entry.value for key, entry in answer.result().items()}
