"""Taking over a partition: its committed offset and every camera's newest checkpoint, read when nobody else
can write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from lookout.runtime import logs
from lookout.runtime.errors import LookoutRuntimeError
from lookout.runtime.settings import ServiceSettings
from lookout.v1.state_pb2 import Checkpoint

#: key of the record that says who owns a partition; camera ids never start with a NUL
OWNER_KEY: Final = "\x00owner"


@dataclass(frozen=True, slots=True)
class Takeover:
    """A partition as its last owner left it. `offset` None: nothing was ever committed."""

    partition: int
    offset: int | None
    owner_epoch: int
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)


class StateReader:
    """Reads `<stage>.state.v1` to its end.

    Order matters: first the group's committed offset, which Kafka gives only once no transaction over it is
    open (from then on the last owner cannot commit any more), then the state partition up to the high
    watermark of that moment, read committed. So offset and checkpoints belong together.
    """

    def __init__(self, settings: ServiceSettings, group: str, source: str, state: str) -> None:
        self._settings = settings
        self._group = group
        self._source = source
        self._state = state
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._log = logs.get("checkpoints")

    def take(self, partition: int, wanted: Callable[[], bool]) -> Takeover | None:
        """Everything of one partition; tries until Kafka answers. None: `wanted` said no meanwhile."""
        tries = 0
        while wanted():
            try:
                return self._take(self._open(), partition, wanted)
            except KafkaException as error:
                self.close()  # they keep what they knew of a broker that has been away
                if tries & (tries - 1) == 0:
                    self._log.warning(
                        "cannot read the state yet", partition=partition, error=str(error.args[0])
                    )
                time.sleep(min(2.0, 0.05 * 2 ** min(tries, 6)))
                tries += 1
        return None

    def close(self) -> None:
        """Leave."""
        self._admin = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._settings.kafka(
                    **{
                        "group.id": self._group,
                        "isolation.level": "read_committed",
                        "enable.auto.commit": False,
                        "enable.partition.eof": True,
                        "auto.offset.reset": "earliest",
                        "fetch.wait.max.ms": 10,  # the end of a partition is said after one empty fetch
                    }
                ),
                logger=logs.client_logger("state"),
            )
        return self._consumer

    def _take(self, consumer: Consumer, partition: int, wanted: Callable[[], bool]) -> Takeover | None:
        (committed,) = consumer.committed([TopicPartition(self._source, partition)], timeout=3.0)
        if committed.error:
            raise KafkaException(committed.error)
        end = self._end(partition)
        found, epoch = self._read(consumer, partition, end, wanted)
        if not wanted():
            return None
        offset = committed.offset if committed.offset >= 0 else None
        return Takeover(partition, offset, epoch + 1, found)

    def _end(self, partition: int) -> int:
        where = TopicPartition(self._state, partition)
        if self._admin is None:
            self._admin = AdminClient(self._settings.kafka(), logger=logs.client_logger("state-admin"))
        futures = self._admin.list_offsets(
            {where: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=3.0
        )
        return int(futures[where].result().offset)

    def _read(
        self, consumer: Consumer, partition: int, end: int, wanted: Callable[[], bool]
    ) -> tuple[dict[str, Checkpoint], int]:
        found: dict[str, Checkpoint] = {}
        epoch = 0
        if end == 0:
            return found, epoch
        consumer.assign([TopicPartition(self._state, partition, OFFSET_BEGINNING)])
        while wanted():
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    break
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                continue
            epoch = max(epoch, _keep(found, message.key(), message.value()))
            if message.offset() >= end - 1:
                break
        return found, epoch


def _keep(found: dict[str, Checkpoint], key: bytes | None, value: bytes | None) -> int:
    """Put one state record in its place; its owner epoch."""
    name = (key or b"").decode("utf-8", "replace")
    if value is None:
        found.pop(name, None)
        return 0
    checkpoint = Checkpoint()
    try:
        checkpoint.ParseFromString(value)
    except Exception as error:  # the exception class differs between protobuf back ends
        raise LookoutRuntimeError(f"the checkpoint of {name!r} cannot be read: {error}") from error
    if name != OWNER_KEY:
        found[name] = checkpoint
    return int(checkpoint.owner_epoch)
