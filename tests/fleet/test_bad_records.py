"""A camera that sends nothing but rubbish, on a real broker, while decode is killed."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from lookout.local import Fleet
from lookout.models import TINY
from lookout.wire import SEGMENTS, Stage, dead_letters, headers
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(600)]

RECORDS, PARTS = 1000, 4
FAILURES = 5  # dead letters of one camera in an interval; the segments after them are counted in one


def test_a_thousand_bad_records_are_each_counted_once(tmp_path: Path) -> None:
    own = {Stage.DECODE: {"quota_failures": str(FAILURES), "quota_interval_s": "5", "silence_s": "86400"}}
    with Fleet(
        tmp_path / "fleet",
        stages=(Stage.DECODE,),
        settings={"model_dir": str(TINY)},
        stage_settings=own,
        partitions=1,
    ) as fleet:
        options = {"bootstrap.servers": fleet.bootstrap, **fleet.kafka_security()}
        producer = Producer({**options, "enable.idempotence": True})
        (decode,) = fleet.services
        for part in range(PARTS):
            for number in range(RECORDS // PARTS):
                producer.produce(SEGMENTS.name, f"rubbish {part} {number}".encode(), key="cam")
            assert producer.flush(60.0) == 0
            # Killed in the middle of them, whatever is committed by then.
            eventually(lambda part=part: supervised(fleet) and read_to(options) > part * RECORDS // PARTS)  # type: ignore[misc]
            assert decode.pid is not None
            os.kill(decode.pid, signal.SIGKILL)

        def covered() -> bool:
            return supervised(fleet) and sum(count for _, _, count in ranges(letters(options))) >= RECORDS

        eventually(covered)
        found = ranges(letters(options))
    offsets = [offset for first, last, _ in found for offset in range(first, last + 1)]
    assert sorted(offsets) == list(range(RECORDS))  # every record in one letter, none in two
    assert all(count == last - first + 1 for first, last, count in found)
    singles = [entry for entry in found if entry[2] == 1]
    # Between two counts lies a whole interval, with its own letters first.
    assert len(found) - len(singles) <= len(singles) / FAILURES + 1


def supervised(fleet: Fleet) -> bool:
    """Start again what ended; whether all services run."""
    fleet.supervise()
    return all(service.pid is not None for service in fleet.services)


def read_to(options: dict[str, str]) -> int:
    """The offset that decode has committed."""
    consumer = Consumer({**options, "group.id": Stage.DECODE.value})
    try:
        (place,) = consumer.committed([TopicPartition(SEGMENTS.name, 0)], timeout=60.0)
        return max(0, int(place.offset))
    finally:
        consumer.close()


def letters(options: dict[str, str]) -> list[Message]:
    """Every committed dead letter of decode's input."""
    more = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**options, **more, "enable.auto.commit": False})
    consumer.assign([TopicPartition(dead_letters(SEGMENTS).name, 0, OFFSET_BEGINNING)])
    found: list[Message] = []
    try:
        while (message := consumer.poll(60.0)) is not None and message.error() is None:
            found.append(message)
    finally:
        consumer.close()
    return found


def ranges(found: list[Message]) -> list[tuple[int, int, int]]:
    """First and last offset that each letter stands for, and their number."""
    out = []
    for message in found:
        pairs = message.headers() or []
        pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
        first = int(headers.text(pairs, headers.SOURCE_OFFSET) or -1)
        last = int(headers.text(pairs, headers.SOURCE_LAST_OFFSET) or first)
        out.append((first, last, int(headers.text(pairs, headers.RECORDS) or 1)))
    return out
