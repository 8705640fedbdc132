"""One short transaction at a time: outputs, dead letters, checkpoints and offsets, together or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lookout.runtime import logs
from lookout.runtime.checkpoints import OWNER_KEY
from lookout.runtime.errors import FencedError, StartupError
from lookout.runtime.partitions import Partition
from lookout.runtime.records import DeadLetter, Delivery, Output, Record, Slot
from lookout.runtime.settings import ServiceSettings
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import headers as names
from lookout.wire.headers import Headers

#: refusals of one record that trying again cannot mend
_HOPELESS = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE}
)
STEP_S = 1.0  # the polling thread gives each call so long, then polls and comes back to it


class Step(Enum):
    """What the transaction has to do next."""

    PRODUCE = auto()
    OFFSETS = auto()
    COMMIT = auto()
    ABORT = auto()


@dataclass(slots=True)
class Transaction:
    """Finished slots on their way."""

    batch: list[tuple[Partition, list[Slot]]]
    step: Step = Step.PRODUCE
    begun: bool = False
    metadata: object = None
    started: float = field(default_factory=time.monotonic)
    deliveries: list[Delivery] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)  # topics, one each
    doubtful: bool = False  # Kafka was away meanwhile: its time may have run out
    why: str = ""

    def give_up(self, why: str) -> None:
        """Abort it, unless its offsets are already in: then the next owner waits for its end, whichever it
        is.
        """
        if self.step in (Step.PRODUCE, Step.OFFSETS):
            self.step, self.why = Step.ABORT, why

    def offsets(self, topic: str) -> list[TopicPartition]:
        """Next unread offsets."""
        found = []
        for partition, slots in self.batch:
            records = [slot.record for slot in slots if slot.record is not None]
            if records:
                found.append(TopicPartition(topic, partition.number, records[-1].offset + 1))
        return found


class Committed(Enum):
    """How far `Committer.advance` came."""

    YES = auto()
    LATER = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of a worker's topics."""

    source: str
    state: str
    dead_letters: str


class Committer:
    """Owns the transactional producer. Used by the polling thread alone."""

    def __init__(
        self, settings: ServiceSettings, stage: str, group: str, topics: Topics, digest: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._topics = topics
        self._digest = digest
        self._log = logs.get("transactions")
        self.identity = f"{group}.{settings.instance}"
        self.poison: dict[tuple[int, int], DeadLetter] = {}
        self._producer = self._start()

    def _start(self) -> Producer:
        producer = Producer(
            self._settings.kafka(
                **{
                    "transactional.id": self.identity,
                    "transaction.timeout.ms": int(self._settings.transaction_timeout_s * 1000),
                    "message.max.bytes": 17 << 20,
                    "linger.ms": 0,
                }
            ),
            logger=logs.client_logger("producer"),
        )
        deadline = time.monotonic() + self._settings.start_timeout_s
        while True:
            try:
                producer.init_transactions(5.0)
                return producer
            except KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or time.monotonic() > deadline:
                    raise StartupError(
                        f"LOOKOUT_BOOTSTRAP={self._settings.bootstrap}: "
                        f"no transactions as {self.identity!r}: {reason.str()}"
                    ) from error

    def poll(self) -> None:
        """Serve the producer's callbacks."""
        self._producer.poll(0)

    def advance(self, transaction: Transaction, consumer: Consumer) -> Committed:
        """Do the next steps, each for at most `STEP_S`. Raises FencedError."""
        try:
            self._advance(transaction, consumer)
            return Committed.YES if transaction.step is Step.COMMIT else Committed.ABORTED
        except KafkaException as error:
            return self._failed(transaction, consumer, error.args[0])
        except BufferError:
            self._producer.poll(0.05)
            transaction.step, transaction.why = Step.ABORT, "the producer's queue is full"
            return Committed.LATER

    def _advance(self, transaction: Transaction, consumer: Consumer) -> None:
        if transaction.step is Step.PRODUCE:
            transaction.metadata = consumer.consumer_group_metadata()
            self._producer.begin_transaction()
            transaction.begun = True
            for partition, slots in transaction.batch:
                for slot in slots:
                    self._write(transaction, partition, slot)
                self._write_checkpoints(transaction, partition, slots)
            transaction.step = Step.OFFSETS
        if transaction.step is Step.OFFSETS:
            offsets = transaction.offsets(self._topics.source)
            if offsets:
                self._producer.send_offsets_to_transaction(offsets, transaction.metadata, STEP_S)
            transaction.step = Step.COMMIT
        if transaction.step is Step.COMMIT:
            self._producer.commit_transaction(STEP_S)
        elif transaction.begun:
            self._producer.abort_transaction(STEP_S)

    def _failed(self, transaction: Transaction, consumer: Consumer, error: KafkaError) -> Committed:
        if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            if not transaction.doubtful:
                raise FencedError(
                    f"another process runs as {self.identity!r} ({error.str()}): this one ends. "
                    "LOOKOUT_INSTANCE must be unique in its stage"
                )
            self._log.warning("the transaction ran out of time while Kafka was away", error=error.str())
            self._producer = self._start()  # its first act is to abort what was left
            return Committed.ABORTED
        if error.txn_requires_abort():
            if transaction.step is not Step.ABORT:
                transaction.step, transaction.why = Step.ABORT, error.str()
                return self.advance(transaction, consumer)
        elif not error.retriable() or (transaction.step is Step.PRODUCE and transaction.begun):
            transaction.step, transaction.why = Step.ABORT, error.str()
        return Committed.LATER

    def _write(self, transaction: Transaction, partition: Partition, slot: Slot) -> None:
        result = slot.result
        assert result is not None
        for output in result.outputs:
            self._produce(transaction, partition, slot, output)
        if result.dead_letter is not None and slot.record is not None:
            self._produce(transaction, partition, slot, self.dead_letter(slot.record, result.dead_letter))

    def _write_checkpoints(self, transaction: Transaction, partition: Partition, slots: list[Slot]) -> None:
        """The last one of each camera is enough."""
        newest: dict[str, Slot] = {}
        for slot in slots:
            if slot.result is not None and (slot.result.checkpoint is not None or slot.result.forget):
                newest[slot.camera or OWNER_KEY] = slot
        for key, slot in newest.items():
            assert slot.result is not None
            value: bytes | None = None
            if slot.result.checkpoint is not None and not slot.result.forget:
                checkpoint = Checkpoint()
                checkpoint.CopyFrom(slot.result.checkpoint)
                checkpoint.owner_epoch = partition.owner_epoch
                checkpoint.config_digest = self._digest()
                value = checkpoint.SerializeToString(deterministic=True)
            self._produce(transaction, partition, slot, Output(self._topics.state, key, value), count=False)

    def _produce(
        self, transaction: Transaction, partition: Partition, slot: Slot, output: Output, count: bool = True
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._refused(slot, output, error)
            elif count:
                transaction.deliveries.append(
                    Delivery(output, partition.number, message.offset() or 0, slot.record)
                )

        if count:
            transaction.outputs.append(output.topic)
        headers = [*output.headers]
        if slot.traceparent and not any(name == names.TRACEPARENT for name, _ in headers):
            headers.extend(slot.traceparent)
        try:
            self._producer.produce(
                output.topic,
                value=output.value,
                key=output.key.encode(),
                partition=partition.number,
                headers=headers,
                on_delivery=delivered,
            )
        except KafkaException as error:
            self._refused(slot, output, error.args[0])
            raise

    def _refused(self, slot: Slot, output: Output, error: KafkaError) -> None:
        if error.code() in _HOPELESS and slot.record is not None:
            reason = DeadLetter("output-refused", f"{output.topic}: {error.str()}")
            if output.topic == self._topics.dead_letters:
                reason = DeadLetter(
                    "dead-letter-refused", f"{output.topic} does not take the original bytes: {error.str()}"
                )
            self.poison[slot.record.partition, slot.record.offset] = reason

    def dead_letter(self, record: Record, why: DeadLetter) -> Output:
        """The record as it came; why and where from in headers."""
        extra: Headers = names.encode(
            {
                names.REASON: why.reason,
                names.DETAIL: why.detail[:4000],
                names.STAGE: self._stage,
                names.SOURCE_TOPIC: record.topic,
                names.SOURCE_PARTITION: str(record.partition),
                names.SOURCE_OFFSET: str(record.offset),
            }
        )
        value = None if why.reason == "dead-letter-refused" else record.value
        return Output(self._topics.dead_letters, record.camera, value, (*record.headers, *extra))
