"""What the consumer's messages and errors mean, without a broker: the client is a fake."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from lookout.errors import FencedError, LookoutRuntimeError
from lookout.runtime.worker import Record
from lookout.runtime.worker.polling import Source, is_static
from lookout.runtime.worker.settings import ServiceSettings

SESSION_S = 10.0


class Heard:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ends: list[int] = []
        self.lost: list[int] = []
        self.unreadable: list[str] = []
        self.broken: list[tuple[int, int]] = []
        self.kafka: list[bool] = []
        self.watermarks: dict[int, tuple[int, int]] = {}

    def on_assigned(self, numbers: Collection[int]) -> None: ...
    def on_revoked(self, numbers: Collection[int]) -> None: ...
    def on_lost(self, numbers: Collection[int]) -> None:
        self.lost += numbers

    def on_record(self, record: Record) -> None:
        self.records.append(record)

    def on_end(self, number: int, offset: int) -> None:
        self.ends.append(number)

    def on_unreadable(self, why: str) -> None:
        self.unreadable.append(why)

    def on_broken_batch(self, number: int, offset: int, why: str) -> None:
        self.broken.append((number, offset))

    def on_kafka(self, up: bool) -> None:
        self.kafka.append(up)

    def on_watermarks(self, ends: dict[int, tuple[int, int]]) -> None:
        self.watermarks = ends


class FakeMessage:
    """A message, or an error in its place."""

    def __init__(self, error: KafkaError | None = None, headers: Any = None) -> None:
        self._error, self._headers = error, headers

    def error(self) -> KafkaError | None:
        return self._error

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def set_headers(self, headers: list[tuple[str, bytes]]) -> None:
        self._headers = headers

    def topic(self) -> str:
        return "in"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"cam"

    def value(self) -> bytes | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000


class FakeConsumer:
    """Gives what it was made with."""

    def __init__(self, *messages: FakeMessage) -> None:
        self.messages = list(messages)

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.assign = callbacks["on_assign"]

    def incremental_assign(self, places: list[TopicPartition]) -> None: ...

    def close(self) -> None:
        self.closed = True

    def poll(self, timeout: float) -> FakeMessage | None:
        return self.messages.pop(0) if self.messages else None


def read(*messages: FakeMessage) -> Heard:
    heard = Heard()
    source = Source("in", "group.one", heard)
    source.use(lambda: FakeConsumer(*messages), SESSION_S)
    source.read(0.0)
    return heard


@pytest.mark.parametrize(
    ("load_s", "chosen", "static"),
    [(4.0, None, True), (40.0, None, False), (40.0, True, True), (0.0, False, False)],
)
def test_a_member_that_cannot_be_back_within_its_session_is_not_static(
    load_s: float, chosen: bool | None, static: bool
) -> None:
    """A model of 7 billion parameters loads for longer than the default session of ten seconds."""
    assert is_static(ServiceSettings(mode="local", static_member=chosen), load_s) is static


def test_records_and_ends_are_told() -> None:
    heard = read(
        FakeMessage(headers=[("a", b"1"), ("b", None)]), FakeMessage(KafkaError(KafkaError._PARTITION_EOF))
    )
    (record,) = heard.records
    assert (record.camera, record.partition, record.offset, record.value) == ("cam", 3, 7, b"")
    assert record.headers == (("a", b"1"),)
    assert heard.ends == [3]


def test_headers_that_cannot_be_read_damage_one_record() -> None:
    heard = read(FakeMessage(headers=SystemError("not text")), FakeMessage())
    assert ["not UTF-8" in record.damage for record in heard.records] == [True, False]


def test_a_topic_that_cannot_be_read_is_told() -> None:
    heard = read(FakeMessage(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    assert heard.unreadable
    assert "in cannot be read" in heard.unreadable[0]


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError.FENCED_INSTANCE_ID),
        KafkaError(KafkaError._FENCED),
        KafkaError(KafkaError._FATAL, "Fatal error: Broker: Static consumer fenced by other consumer"),
    ],
)
def test_fencing_codes_mean_another_process(error: KafkaError) -> None:
    with pytest.raises(FencedError, match="LOOKOUT_INSTANCE"):
        read(FakeMessage(error))


def test_another_fatal_error_is_no_fencing() -> None:
    with pytest.raises(LookoutRuntimeError) as caught:
        read(FakeMessage(KafkaError(KafkaError._FATAL, "the broker answers nonsense")))
    assert not isinstance(caught.value, FencedError)


def test_an_error_that_passes_is_only_logged() -> None:
    assert read(FakeMessage(KafkaError(KafkaError._TRANSPORT)), FakeMessage()).records


def test_statistics_tell_brokers_and_ends() -> None:
    heard = Heard()
    source = Source("in", "group.one", heard)
    partitions = {"3": {"lo_offset": 2, "ls_offset": 9}, "-1": {"ls_offset": -1}}
    facts = {"brokers": {"one": {"state": "UP"}}, "topics": {"in": {"partitions": partitions}}}
    source.on_statistics(json.dumps(facts))
    assert heard.kafka == [True]
    assert heard.watermarks == {3: (2, 9)}


def test_an_error_of_the_background_is_raised_on_the_polling_thread() -> None:
    source = Source("in", "group.one", Heard())
    source.use(FakeConsumer, SESSION_S)
    source.on_error(KafkaError(KafkaError.FENCED_INSTANCE_ID))
    with pytest.raises(FencedError):
        source.read(0.0)


def silence(seconds: float) -> str:
    return json.dumps({"brokers": {"GroupCoordinator": {"state": "UP", "rxidle": int(seconds * 1e6)}}})


def test_a_member_fenced_by_its_own_join_joins_again() -> None:
    """Kafka stood still for a session and read this process's join twice."""
    heard, clients, now = Heard(), [], [100.0]

    def client() -> FakeConsumer:
        fenced = FakeMessage(KafkaError(KafkaError.FENCED_INSTANCE_ID))
        clients.append(FakeConsumer(*([] if clients else [fenced])))
        return clients[-1]

    source = Source("in", "group.one", heard, clock=lambda: now[0])
    source.use(client, SESSION_S)
    clients[0].assign(clients[0], [TopicPartition("in", 3)])
    source.on_statistics(silence(8.0))
    now[0] += 3 * SESSION_S
    source.read(0.0)
    assert (heard.lost, clients[0].closed, len(clients)) == ([3], True, 2)
    source.on_error(KafkaError(KafkaError.FENCED_INSTANCE_ID))
    now[0] += 2 * SESSION_S  # too long after the standstill: it is another process
    with pytest.raises(FencedError):
        source.read(0.0)


def test_a_member_fenced_without_a_standstill_ends() -> None:
    source = Source("in", "group.one", Heard())
    source.use(FakeConsumer, SESSION_S)
    source.on_statistics(silence(3.0))
    source.on_error(KafkaError(KafkaError.FENCED_INSTANCE_ID))
    with pytest.raises(FencedError):
        source.read(0.0)
