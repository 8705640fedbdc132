"""The fleet's state: its services' lag, their instances, and the findings of `lookout doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Final

from confluent_kafka import KafkaException

from lookout.runtime.fleet_checks import kafka_checks, redis_check
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.observe import logs
from lookout.runtime.worker.fleet_check import version_of
from lookout.runtime.worker.topic_reader import End, Place, TopicReader
from lookout.services.gateway.settings import GatewaySettings
from lookout.text import clean
from lookout.v1.gateway_pb2 import Finding, LagRow, ServiceRow
from lookout.wire import NOTIFY, PIPELINE, RECORDING_FLOWS, Flow

FLOWS: Final[tuple[Flow, ...]] = (*PIPELINE.values(), *RECORDING_FLOWS, NOTIFY)
_ANSWER_S: Final = 10.0
_NAME_CHARS: Final = 200


def lag_rows(settings: GatewaySettings) -> list[LagRow]:
    """Return how far each service has read its topic, per partition.

    `lag` is the number of offsets up to the topic's end. It is 0 if none of these offsets has a record for
    the service: transactions also write markers into topics, and aborted records stay there.
    """
    # Small fetches, because one record is enough.
    options = {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 1 << 16}
    with closing(TopicReader(settings, "gateway-lag", options=options)) as reader:
        known = reader.known({flow.source.name for flow in FLOWS}, _ANSWER_S)
        read = [flow for flow in FLOWS if flow.source.name in known]
        rows = [row for flow in read for row in _rows_of(settings, reader, flow, known[flow.source.name])]
        _drop_marks(reader, rows)
    return rows


def _rows_of(
    settings: GatewaySettings, reader: TopicReader, flow: Flow, partitions: list[int]
) -> Iterator[LagRow]:
    topic = flow.source.name
    with closing(TopicReader(settings, "gateway-lag", group=flow.group)) as of_group:
        commits = of_group.committed(topic, partitions, _ANSWER_S)
    begins, ends = (ask(topic, partitions, _ANSWER_S) for ask in (reader.begins, reader.ends))
    for number in partitions:
        committed = max(commits.get(number, 0), begins[number])
        yield LagRow(
            group=flow.group,
            topic=topic,
            partition=number,
            committed=committed,
            end=ends[number],
            lag=max(0, ends[number] - committed),
        )


def _drop_marks(reader: TopicReader, rows: list[LagRow]) -> None:
    """Set the lag to 0 if only markers and aborted records remain."""
    late: dict[Place, list[LagRow]] = {}
    for row in rows:
        if row.lag:
            late.setdefault((row.topic, row.partition), []).append(row)
    # Several groups may read one topic from different offsets, so read one group per partition at a time.
    while late:
        _read_one(reader, {place: waiting.pop() for place, waiting in late.items()})
        late = {place: waiting for place, waiting in late.items() if waiting}


def _read_one(reader: TopicReader, rows: Mapping[Place, LagRow]) -> None:
    """Read from each row's offset up to the first record. If there is no record up to the end, set the row's
    lag to 0.
    """
    reader.read_places({place: row.committed for place, row in rows.items()})
    waiting, deadline = dict(rows), time.monotonic() + _ANSWER_S
    while waiting and time.monotonic() < deadline:
        try:
            message = reader.next(0.2)
        except KafkaException:  # unknown whether records remain, so keep the lag
            return
        if isinstance(message, End):
            if (row := waiting.pop((message.topic, message.partition), None)) is not None:
                row.lag = 0
        elif message is not None:
            waiting.pop((str(message.topic()), message.partition() or 0), None)


def service_rows(settings: GatewaySettings) -> list[ServiceRow]:
    """Return the members of the services' consumer groups, with their versions; empty if Kafka does not
    answer.
    """
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("fleet"))
    groups: dict[str, Future[Any]] = admin.describe_consumer_groups(
        [flow.group for flow in FLOWS], request_timeout=_ANSWER_S
    )
    rows: list[ServiceRow] = []
    for group, pending in groups.items():
        try:
            members = pending.result(_ANSWER_S).members
        except KafkaException:  # the group has never had a member
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
    """Yield the findings of `lookout doctor` about Kafka and Redis, checked with this gateway's
    connections.
    """
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("fleet"))
    for result in (
        *kafka_checks(admin, settings.bootstrap),
        redis_check(lambda: settings, settings.redis_url),
    ):
        yield Finding(about=result.about, state=result.state.value, found=result.found, advice=result.advice)
