"""The state of a fleet: what its services still have to read, their members, and the findings of `lookout
doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from lookout.runtime.fleet_checks import kafka_checks, redis_check
from lookout.runtime.kafka_clients import AdminClient, Consumer
from lookout.runtime.observe import logs
from lookout.runtime.worker.fleet_check import version_of
from lookout.services.gateway.settings import GatewaySettings
from lookout.text import clean
from lookout.v1.gateway_pb2 import Finding, LagRow, ServiceRow
from lookout.wire import NOTIFY, PIPELINE, RECORDING_FLOWS, Flow, prefixed

FLOWS: Final[tuple[Flow, ...]] = (*PIPELINE.values(), *RECORDING_FLOWS, NOTIFY)
_ANSWER_S: Final = 10.0
_NAME_CHARS: Final = 200


def lag_rows(settings: GatewaySettings) -> list[LagRow]:
    """How far each service has read its topic.

    `lag` counts the offsets up to the end. It is 0 if none of them is a record for the service: transactions
    write markers into topics, and aborted records stay there.
    """
    rows = []
    for flow in FLOWS:
        options = {"group.id": flow.group, "enable.auto.commit": False}
        consumer = Consumer(settings.kafka(**options))
        try:
            topic = flow.source.name
            partitions = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in partitions]
            for place in consumer.committed(places, timeout=_ANSWER_S):
                low, high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
                committed = max(place.offset, low)
                rows.append(
                    LagRow(
                        group=flow.group,
                        topic=topic,
                        partition=place.partition,
                        committed=committed,
                        end=high,
                        lag=max(0, high - committed),
                    )
                )
        finally:
            consumer.close()
    _drop_marks(settings, rows)
    return rows


def _drop_marks(settings: GatewaySettings, rows: list[LagRow]) -> None:
    """Set the lag to 0 where only markers and aborted records remain."""
    late: dict[tuple[str, int], list[LagRow]] = {}
    for row in rows:
        if row.lag:
            late.setdefault((row.topic, row.partition), []).append(row)
    # Groups may share a topic; each has a place of its own in it.
    while late:
        _read_one(settings, {place: waiting.pop() for place, waiting in late.items()})
        late = {place: waiting for place, waiting in late.items() if waiting}


def _read_one(settings: GatewaySettings, rows: Mapping[tuple[str, int], LagRow]) -> None:
    """Read from each row's offset until a record or the end comes."""
    options = {
        "group.id": prefixed("gateway-lag"),
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": 1 << 16,  # one record is enough
        "queued.max.messages.kbytes": 1 << 10,
    }
    consumer = Consumer(settings.kafka(**options))
    try:
        waiting = dict(rows)
        consumer.assign(
            [TopicPartition(topic, number, row.committed) for (topic, number), row in rows.items()]
        )
        deadline = time.monotonic() + _ANSWER_S
        while waiting and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                row = waiting.pop((str(message.topic()), message.partition() or 0), None)
                if row is not None and _is_end(message):
                    row.lag = 0
    finally:
        consumer.close()


def _is_end(message: Message) -> bool:
    """Whether a message marks the end of a partition; any other error says nothing of what remains."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def service_rows(settings: GatewaySettings) -> list[ServiceRow]:
    """The members of the services' groups, with their versions; empty if Kafka does not say."""
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("fleet"))
    groups: dict[str, Future[Any]] = admin.describe_consumer_groups(
        [flow.group for flow in FLOWS], request_timeout=_ANSWER_S
    )
    rows: list[ServiceRow] = []
    for group, pending in groups.items():
        try:
            members = pending.result(_ANSWER_S).members
        except KafkaException:  # a group that nobody has joined yet
            continue
        rows.extend(
            ServiceRow(
                group=group,
                instance=clean(member.group_instance_id or "", _NAME_CHARS),
                host=clean(str(member.host).lstrip("/"), _NAME_CHARS),
                version=version_of(str(member.client_id)),
            )
            for member in members
        )
    return sorted(rows, key=lambda row: (row.group, row.instance, row.host))


def findings(settings: GatewaySettings) -> Iterator[Finding]:
    """The findings of `lookout doctor` on Kafka and Redis, as this gateway reaches them."""
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("fleet"))
    for result in (
        *kafka_checks(admin, settings.bootstrap),
        redis_check(lambda: settings, settings.redis_url),
    ):
        yield Finding(about=result.about, state=result.state.value, found=result.found, advice=result.advice)
