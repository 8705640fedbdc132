"""Writes outputs, dead letters, checkpoints and offsets in short transactions, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from queue import Empty, SimpleQueue

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from lookout.errors import FencedError, LookoutRuntimeError, StartupError
from lookout.runtime.kafka_clients import Producer
from lookout.runtime.observe import logs
from lookout.runtime.worker.growth import added_by_hand
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Delivery, Output, Slot
from lookout.runtime.worker.refusals import LetterContent, Refusals, dead_letter
from lookout.runtime.worker.settings import ServiceSettings
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import MAX_MESSAGE_BYTES, headers as names

#: error codes of a client whose identity another client has taken over, or whose transaction timed out
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
#: error codes of a record that Kafka will never accept
_REFUSALS = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE}
)
MAX_BROKEN = 5  # number of consecutive clients that may fail, other than by fencing, before the process ends
TELL_AGAIN_S = 120.0  # seconds after which a missing partition is logged again
STEP_S = 5.0  # seconds after which a call that Kafka does not answer is repeated


class Step(Enum):
    """The transaction's next step."""

    PRODUCE = auto()
    OFFSETS = auto()
    COMMIT = auto()
    ABORT = auto()


@dataclass(slots=True)
class Transaction:
    """Finished slots that are being committed.

    `metadata` is the group's metadata from when the batch was collected. It must not be replaced by the
    metadata of a later generation of the group.
    """

    batch: list[tuple[Partition, list[Slot]]]
    metadata: object
    step: Step = Step.PRODUCE
    begun: bool = False
    started: float = field(default_factory=time.monotonic)
    deliveries: list[Delivery] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)  # the topic of each output
    unplaced: list[Callable[[], None]] = field(
        default_factory=list
    )  # functions that look for a missing partition
    abandoned: str = ""  # why the transaction must be aborted; empty: it need not
    why: str = ""  # the error that ended the last step

    def give_up(self, why: str) -> None:
        """Abort the transaction unless it is already being committed. The next owner of its partitions waits
        for its end."""
        self.abandoned = why

    def offsets(self, topic: str, mark: str = "") -> list[TopicPartition]:
        """Return the next unread offset of each partition, with this configuration's mark.

        Only members of the group can commit offsets. The mark therefore distinguishes a changed configuration
        from a record that somebody else wrote to the state topic.

        A partition that has ticks but no records commits its previous offset again, so that Kafka checks that
        this worker still owns the partition.
        """
        reads = []
        for partition, slots in self.batch:
            records = [slot.record for slot in slots if slot.record is not None]
            offset = records[-1].offset + 1 if records else partition.committed
            if offset is not None:
                reads.append(TopicPartition(topic, partition.number, offset, mark))
        return reads


class TransactionResult(Enum):
    """How a transaction ended. UNKNOWN: Kafka's answer was lost, so the committed offsets must be read."""

    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()

    @property
    def committed(self) -> bool:
        """Whether the transaction was committed."""
        return self is TransactionResult.COMMITTED


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a transaction. `error` is an error that must end the process; None: there is none."""

    transaction: Transaction
    outcome: TransactionResult
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of a worker's topics."""

    source: str
    state: str
    dead_letters: str
    dead_letter_bytes: int = MAX_MESSAGE_BYTES  # largest record that `dead_letters` takes


class _ReplacedError(Exception):
    """This thread was abandoned, and another thread with its own client has replaced it."""


class Committer:
    """Owns the transactional producer and the thread that runs transactions.

    Transactions have their own thread, because calls to an unreachable broker can take far longer than their
    time-outs. A thread that hangs is abandoned. A new thread makes a new client, which fences the old one.

    Two flags decide what an error means:

    - The client is *suspect* after Kafka was unreachable, a call ended without an answer, or a record was
    rejected. An
      error of a suspect client leaves the outcome of the transaction unknown. The client is replaced before
      the next transaction.
    - The process *may fence itself* after it has abandoned a thread. The client that this thread may still be
    making
      fences its successor, even long after Kafka is reachable again. This ends when a transaction commits
      that began when no such thread was left.

    If neither flag is set, an error determines how the transaction ended, and a fencing error means that
    another process has the same identity.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        stage: str,
        identity: str,
        topics: Topics,
        *,
        refusals: Refusals,
        digest: Callable[[], str],
        ended: Callable[[Ended], None],
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._topics = topics
        self._digest = digest
        self._ended = ended
        self._refusals = refusals
        self._log = logs.get("transactions")
        # When to log a missing partition (topic and number) again, monotonic seconds.
        self._next_notice: dict[tuple[str, int], float] = {}
        self._stop = threading.Event()
        self._work: SimpleQueue[Transaction | None] = SimpleQueue()
        self._turns = 0
        self._broken = 0  # number of consecutive clients that failed without a commit
        self._suspect = False
        self._may_fence_itself = False
        self._starting: set[int] = set()  # numbers of the threads that are making a client
        self.identity = identity
        self._producer = self._start(self._turns, settings.start_timeout_s)
        self._thread = self._begin(None)

    def _begin(self, unknown: Transaction | None) -> threading.Thread:
        self._turns += 1
        arguments = (self._turns, self._work, unknown)
        thread = threading.Thread(target=self._run, args=arguments, name="transactions", daemon=True)
        thread.start()
        return thread

    def outage(self) -> None:
        """Note that Kafka is unreachable, so that the client is replaced before the next transaction."""
        self._suspect = True

    def replace(self, transaction: Transaction) -> None:
        """Replace a client that hangs in `transaction`. The new client fences the old one."""
        self._log.warning("a transaction does not end; replacing the producer", step=transaction.step.name)
        self._work = SimpleQueue()
        self._suspect, self._may_fence_itself = False, True
        self._thread = self._begin(transaction)

    def submit(self, transaction: Transaction) -> None:
        """Queue a transaction. When it has ended, `ended` is called on the committer's thread."""
        self._work.put(transaction)

    def close(self) -> None:
        """Run no more transactions. Kafka aborts a transaction that hangs."""
        self._stop.set()
        self._work.put(None)
        self._thread.join(1.0)

    def _start(self, turn: int, patience_s: float) -> Producer:
        self._starting.add(turn)
        try:
            producer = self._make_client()
            deadline = time.monotonic() + patience_s
            while turn == self._turns:
                try:
                    producer.init_transactions(STEP_S)
                    return producer
                except KafkaException as error:
                    reason = error.args[0]
                    if not reason.retriable() or time.monotonic() > deadline or self._stop.is_set():
                        raise StartupError(
                            f"LOOKOUT_BOOTSTRAP={self._settings.bootstrap}: Kafka allows no transactions "
                            f"as {self.identity!r}: {reason.str()}"
                        ) from error
            # Another thread has replaced this one. Delete this client, which would fence the other thread's.
            del producer
            raise _ReplacedError
        finally:
            self._starting.discard(turn)

    def _make_client(self) -> Producer:
        return Producer(
            self._settings.kafka(
                **{
                    "transactional.id": self.identity,
                    "transaction.timeout.ms": int(self._settings.transaction_timeout_s * 1000),
                    # A dead letter can contain a segment (16 MiB) and all of its headers (1 MiB).
                    "message.max.bytes": 17 << 20,
                    # the transaction's records are all queued at once, so waiting gains nothing
                    "linger.ms": 0,
                }
            ),
            logger=logs.client_logger("producer"),
        )

    def _check_in_charge(self, turn: int) -> None:
        if turn != self._turns:
            raise _ReplacedError

    def _run(self, turn: int, work: SimpleQueue[Transaction | None], unknown: Transaction | None) -> None:
        transaction = unknown
        try:
            if unknown is not None:
                self._renew(turn)
                self._report(turn, Ended(unknown, TransactionResult.UNKNOWN))
            while turn == self._turns:
                try:
                    transaction = work.get(timeout=1.0)
                except Empty:
                    self._producer.poll(0)
                    continue
                if transaction is None:
                    return
                self._report(turn, Ended(transaction, self._end(transaction, turn)))
        except _ReplacedError:
            return
        except Exception as error:
            if transaction is not None:
                self._report(turn, Ended(transaction, TransactionResult.UNKNOWN, error))

    def _report(self, turn: int, ended: Ended) -> None:
        if turn == self._turns:
            self._ended(ended)

    def _renew(self, turn: int) -> None:
        """Make a new client with the same identity. It first aborts the old client's open transaction."""
        self._suspect = False
        producer = self._start(turn, float("inf"))
        self._check_in_charge(turn)
        self._producer = producer

    def _end(self, transaction: Transaction, turn: int) -> TransactionResult:
        """Run the transaction to its end.

        Raises:
            FencedError: Another process has the same identity.
            LookoutRuntimeError: Clients keep failing, or the committer was stopped.
            _ReplacedError: This thread was abandoned.
        """
        if self._suspect:
            self._renew(turn)
        alone = not self._starting
        while not self._stop.is_set():
            try:
                self._advance(transaction, turn)
                self._check_in_charge(turn)
                if transaction.step is Step.COMMIT:
                    self._broken = 0
                    self._may_fence_itself = self._may_fence_itself and not alone
                    return TransactionResult.COMMITTED
                # An abort that this process did not ask for: Kafka may have rejected a record. The client
                # would then skip sequence numbers in its next transactions, so it has to be replaced.
                self._suspect = self._suspect or not transaction.abandoned
                return TransactionResult.ABORTED
            except KafkaException as error:
                self._check_in_charge(turn)
                self._look_for_partitions(transaction)
                self._decide(transaction, error.args[0])
            except BufferError:
                transaction.step, transaction.why = Step.ABORT, "the producer's queue is full"
            if self._suspect:
                self._log.warning("the outcome of a transaction is unknown", why=transaction.why)
                self._renew(turn)
                return TransactionResult.UNKNOWN
        raise LookoutRuntimeError("the committer was stopped during a transaction")

    def _advance(self, transaction: Transaction, turn: int) -> None:
        producer = self._producer
        self._check_in_charge(turn)  # afterwards, `producer` is this thread's client
        if transaction.step is Step.PRODUCE:
            producer.begin_transaction()
            transaction.begun = True
            for partition, slots in transaction.batch:
                for slot in slots:
                    self._write(transaction, partition, slot)
                self._write_checkpoints(transaction, partition, slots)
            transaction.step = Step.OFFSETS
        if transaction.step is Step.OFFSETS and not transaction.abandoned:
            offsets = transaction.offsets(self._topics.source, self._digest())
            if offsets:
                producer.send_offsets_to_transaction(offsets, transaction.metadata, STEP_S)
            if not transaction.abandoned:
                transaction.step = Step.COMMIT
        if transaction.step is Step.OFFSETS:
            transaction.step, transaction.why = Step.ABORT, transaction.abandoned
        if transaction.step is Step.COMMIT:
            producer.commit_transaction(STEP_S)
        elif transaction.begun:
            producer.abort_transaction(STEP_S)

    def _decide(self, transaction: Transaction, error: KafkaError) -> None:
        """Choose what to do after an error: abort the transaction, also mark the client as suspect, or end
        the process."""
        transaction.why = transaction.abandoned or error.str()
        if error.code() in _FENCED:
            # When a transaction exceeds its time-out, Kafka aborts it and fences its producer. Such an error
            # does not mean that there is another process.
            lasted = time.monotonic() - transaction.started
            sound = not (self._suspect or self._may_fence_itself)
            if sound and lasted < self._settings.transaction_timeout_s:
                raise FencedError(
                    f"another process runs as {self.identity!r} ({error.str()}), so this process stops; give "
                    "each process of a stage a different LOOKOUT_INSTANCE"
                )
            self._suspect = True
        elif error.fatal():
            self._broken += 1
            if self._broken > MAX_BROKEN:
                raise LookoutRuntimeError(f"all transactions as {self.identity!r} fail: {error.str()}")
            self._suspect = True
        elif (error.retriable() and not error.txn_requires_abort()) or transaction.step is Step.ABORT:
            self._suspect = True
        transaction.step = Step.ABORT

    def _write(self, transaction: Transaction, partition: Partition, slot: Slot) -> None:
        result = slot.result
        assert result is not None
        for output in result.outputs:
            self._produce(transaction, partition, slot, output)
        if result.dead_letter is None or slot.record is None:
            return
        refusal = self._refusals.of(slot.record)
        letter, kept = dead_letter(
            slot.record,
            result.dead_letter,
            refusal.kept if refusal is not None else LetterContent.ALL,
            stage=self._stage,
            topic=self._topics.dead_letters,
            limit=self._topics.dead_letter_bytes,
        )
        if letter is None:
            self._log.error(
                "a record is dropped, because even its smallest dead letter is too large",
                partition=partition.number,
                offset=slot.record.offset,
                reason=result.dead_letter.reason,
            )
            return
        self._produce(transaction, partition, slot, letter, kept=kept)

    def _write_checkpoints(self, transaction: Transaction, partition: Partition, slots: list[Slot]) -> None:
        """Write the newest checkpoint of each camera."""
        newest: dict[str, Slot] = {}
        for slot in slots:
            if slot.result is not None and (slot.result.checkpoint is not None or slot.result.forget):
                newest[slot.camera] = slot
        for key, slot in newest.items():
            assert slot.result is not None
            value: bytes | None = None
            if slot.result.checkpoint is not None and not slot.result.forget:
                checkpoint = Checkpoint()
                checkpoint.CopyFrom(slot.result.checkpoint)
                checkpoint.config_digest = self._digest()
                checkpoint.record_ms = (
                    slot.record.timestamp_ms if slot.record else partition.active_ms.get(slot.camera, 0)
                )
                value = checkpoint.SerializeToString(deterministic=True)
            self._produce(transaction, partition, slot, Output(self._topics.state, key, value), count=False)

    def _produce(
        self,
        transaction: Transaction,
        partition: Partition,
        slot: Slot,
        output: Output,
        *,
        count: bool = True,
        kept: LetterContent | None = None,
    ) -> None:
        number = partition.number if output.partition is None else output.partition

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._on_rejection(transaction, partition, slot, output, error=error, kept=kept)
            elif count:
                transaction.deliveries.append(Delivery(output, number, message.offset() or 0, slot.record))

        if count:
            transaction.outputs.append(output.topic)
        headers = [*output.headers]
        if slot.traceparent and not any(name == names.TRACEPARENT for name, _ in headers):
            headers.extend(slot.traceparent)
        if slot.arrived_ms and kept is None:
            headers.append((names.ARRIVED, str(slot.arrived_ms).encode()))
        try:
            self._producer.produce(
                output.topic,
                value=output.value,
                key=output.key.encode(),
                partition=number,
                headers=headers,
                on_delivery=delivered,
            )
        except KafkaException as error:
            self._on_rejection(transaction, partition, slot, output, error=error.args[0], kept=kept)
            raise

    def _log_missing(self, topic: str, number: int) -> None:
        now = time.monotonic()
        if now >= self._next_notice.get((topic, number), 0.0):
            self._next_notice[topic, number] = now + TELL_AGAIN_S
            self._log.warning(
                added_by_hand(topic, number, self._topics.source), partition=number, advice=True
            )

    def _on_rejection(
        self,
        transaction: Transaction,
        partition: Partition,
        slot: Slot,
        output: Output,
        *,
        error: KafkaError,
        kept: LetterContent | None,
    ) -> None:
        if error.code() in _REFUSALS:
            self._note_rejection(partition, slot, output, error, kept)
        elif error.code() == KafkaError._UNKNOWN_PARTITION:
            # A client that has no metadata of the topic yet accepts the record, and reports the error at the
            # commit.
            transaction.unplaced.append(
                lambda: self._look_for_partition(partition, slot, output, error, kept)
            )

    def _look_for_partitions(self, transaction: Transaction) -> None:
        for find_partition in transaction.unplaced:
            with suppress(KafkaException):  # Kafka does not answer; the next attempt asks again
                find_partition()
        transaction.unplaced.clear()

    def _look_for_partition(
        self, partition: Partition, slot: Slot, output: Output, error: KafkaError, kept: LetterContent | None
    ) -> None:
        """Refresh the client's metadata to look for the missing partition of a record.

        If the partition has been added meanwhile, the next attempt finds it. Otherwise, the missing partition
        is logged, or the record is rejected if its partition number came from a message.
        """
        number = partition.number if output.partition is None else output.partition
        known = self._producer.list_topics(output.topic, timeout=STEP_S).topics[output.topic].partitions
        # A number given in the output came from a message. The input's own number may be about to be added to
        # the topic (`lookout topics grow`).
        if output.partition not in (None, *known):
            self._note_rejection(partition, slot, output, error, kept)
        elif number not in known:
            self._log_missing(output.topic, number)

    def _note_rejection(
        self, partition: Partition, slot: Slot, output: Output, error: KafkaError, kept: LetterContent | None
    ) -> None:
        self._log.warning("Kafka rejected a record", topic=output.topic, camera=slot.camera, why=error.str())
        if slot.record is None:
            self._refusals.tick_refused(partition.number, slot.camera)
        elif kept is not None:
            self._refusals.dead_letter_refused(slot.record, kept)
        else:
            self._refusals.output_refused(slot.record, output.topic, error.str())
