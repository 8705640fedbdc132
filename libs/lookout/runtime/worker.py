"""The Kafka worker: one thread polls and commits, others compute; every record counts exactly once.

The polling thread reads records into their partition's order and hands each camera's next one to a compute
thread. What finished without a hole before it (a partition's finished prefix) is committed in one short
transaction together with its offsets. Nothing else writes. The thread never waits for compute; calls to Kafka
give way after a second and are resumed on the next turn.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lookout.runtime import logs
from lookout.runtime.checkpoints import StateReader, Takeover
from lookout.runtime.errors import (
    FencedError,
    LookoutRuntimeError,
    StartupError,
)
from lookout.runtime.health import Health
from lookout.runtime.metrics import Metrics
from lookout.runtime.partitions import Lane, Partition
from lookout.runtime.processing import Finished, Processor
from lookout.runtime.record_reader import record_of
from lookout.runtime.records import DeadLetter, Handler, Record, Result, Slot, StoredCheckpoint
from lookout.runtime.refusals import Refusal
from lookout.runtime.settings import ServiceSettings
from lookout.runtime.transactions import Committer, Ended, Topics, Transaction, TransactionResult
from lookout.v1.state_pb2 import Checkpoint

MOST_SLOTS = 500  # of one partition in one transaction
IDLE_S = 0.1
BUSY_S = 0.01
REVOKE_S = 5.0
HANG_S = 5.0
CATCH_UP_S = 2.0  # after reading starts again, before time counts
CAMERA_ID_BYTES = 200
#: a fatal error's own `fatal()` is False where it arrives as a message
_FENCED = frozenset({KafkaError._FATAL, KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID})


@dataclass(frozen=True, slots=True)
class _Loaded:
    partition: Partition
    takeover: Takeover | None
    error: Exception | None = None


class Worker:
    """Runs a handler over its share of one topic. `run` is the polling thread; `stop` may be called from any
    thread.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        stage: str,
        topics: Topics,
        handler: Handler[Any],
        *,
        metrics: Metrics | None = None,
        health: Health | None = None,
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._topics = topics
        self._handler = handler
        self._metrics = metrics or Metrics(stage)
        self._health = health or Health(settings.stall_s)
        self._group = settings.group or stage
        self._processor = Processor(settings, stage, handler, metrics=self._metrics, health=self._health)
        self._log = logs.get("worker")
        self._stopping = threading.Event()
        self._events: SimpleQueue[Finished | _Loaded | Ended] = SimpleQueue()
        self._partitions: dict[int, Partition] = {}
        self._paused: set[int] = set()
        self._full: frozenset[int] = frozenset()
        self._full_at = 0.0
        self._transaction: Transaction | None = None
        self._computing = 0
        self._assigned = False
        self._kafka_up = True
        self._fatal: KafkaError | None = None
        self._closing = False

    # -- life

    def stop(self) -> None:
        """Finish quickly: commit what is done, give partitions back, return from `run`."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`. Raises FencedError when another process took this one's identity."""
        self._committer = Committer(
            self._settings,
            self._stage,
            self._group,
            self._topics,
            digest=lambda: self._handler.config_digest,
            ended=self._events.put,
        )
        self._reader = StateReader(self._settings, self._group, self._topics.source, self._topics.state)
        self._compute = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="compute")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="takeover")
        self._consumer = self._open()
        try:
            self._consumer.subscribe(
                [self._topics.source],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._stopping.is_set():
                self._turn(reading=True)
            self._drain()
        finally:
            self._close()

    def _open(self) -> Consumer:
        options: dict[str, Any] = {
            "group.id": self._group,
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": int(self._settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": max(200, int(self._settings.session_timeout_s * 1000 / 5)),
            "max.poll.interval.ms": max(60_000, int(self._settings.session_timeout_s * 1000) + 1),
            "queued.max.messages.kbytes": max(1024, self._settings.in_flight_bytes >> 10),
            "statistics.interval.ms": 1000,
            "stats_cb": self._on_statistics,
            "error_cb": self._on_error,
        }
        if self._settings.static_member:
            options["group.instance.id"] = self._committer.identity
        return Consumer(self._settings.kafka(**options), logger=logs.client_logger("consumer"))

    def _drain(self) -> None:
        """Running work may finish for a moment; then the finished prefix is committed."""
        self._health.block("worker", "stopping")
        deadline = time.monotonic() + self._settings.drain_s
        while time.monotonic() < deadline and (self._computing or self._transaction):
            self._turn(reading=False)
        self._settle(time.monotonic() + min(REVOKE_S, self._settings.drain_s + 1.0))

    def _close(self) -> None:
        self._closing = True
        for partition in self._partitions.values():
            partition.dead = True
        self._compute.shutdown(wait=False, cancel_futures=True)
        self._committer.close()
        self._loader.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        self._consumer.close()
        self._health.block("worker", "stopped")

    # -- one turn

    def _turn(self, reading: bool) -> None:
        self._health.beat()
        self._take_events()
        if reading:
            self._wake_lanes()
        self._commit()
        self._hold_back()
        self._read(reading)

    def _read(self, reading: bool) -> None:
        """Messages that are there, waiting a little for the first. Rebalances happen in here."""
        if self._fatal is not None:
            self._consumer_error(self._fatal)
        quiet = IDLE_S if not (self._computing or self._transaction) else BUSY_S
        for turn in range(256):
            message = self._consumer.poll(quiet if turn == 0 else 0)
            if message is None:
                return
            self._accept(message, reading)

    def _accept(self, message: Message, reading: bool) -> None:
        partition = self._partitions.get(message.partition() or 0)
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            if partition is not None:
                partition.at_end = True
            self._health.clear("topic")
            return
        if error is not None:
            self._consumer_error(error)
            return
        if partition is None or partition.seek_to is not None or not reading:
            return  # given back, going back, or stopping: not committed, so it is read again
        partition.at_end = False
        self._health.clear("topic")
        record = record_of(message)
        partition.record_ms = max(partition.record_ms, record.timestamp_ms)
        slot = Slot(record.camera, record, traceparent=_traceparent(record))
        if (reason := _refusal(record)) is not None:
            slot.camera = ""
            partition.add(slot).waiting.pop()
            slot.result = Result(dead_letter=reason)
            return
        self._dispatch(partition.add(slot))

    def _consumer_error(self, error: KafkaError) -> None:
        code = error.code()
        if code in _FENCED or (error.fatal() and "FENCED" in error.str()):
            raise FencedError(
                f"another process runs as {self._committer.identity!r} ({error.str()}): this one ends. "
                "LOOKOUT_INSTANCE must be unique in its stage"
            )
        if error.fatal():
            raise LookoutRuntimeError(f"the consumer of {self._topics.source} failed: {error.str()}")
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            self._health.block("topic", f"{self._topics.source} cannot be read: {error.str()}")
        self._log.warning("Kafka", error=error.str())

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            self._take(event)

    def _take(self, event: Finished | _Loaded | Ended) -> None:
        if isinstance(event, _Loaded):
            self._on_loaded(event)
        elif isinstance(event, Ended):
            self._on_ended(event)
        else:
            self._on_finished(event)

    # -- lanes

    def _dispatch(self, lane: Lane) -> None:
        """Hand the camera's next slot to a compute thread."""
        partition = lane.partition
        if lane.busy or not lane.waiting or lane.retry_at is not None or self._stopping.is_set():
            return
        if not partition.loaded or partition.dead:
            return
        slot = lane.waiting[0]
        lane.busy = True
        self._computing += 1
        refusal = self._committer.refusals.of(slot.record) if slot.record is not None else None
        self._compute.submit(self._compute_one, lane, slot, refusal)

    def _compute_one(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> None:
        self._events.put(self._processor.process(lane, slot, refusal))

    def _on_finished(self, event: Finished) -> None:
        lane, slot = event.lane, event.slot
        self._computing -= 1
        lane.busy = False
        if event.fatal is not None:
            raise event.fatal
        if lane.partition.dead:
            if event.result is not None and event.result.outputs:
                self._handler.dropped(event.result.outputs)
            return
        if event.result is None:
            lane.retry_at = time.monotonic() + event.delay
            return
        lane.waiting.popleft()
        slot.result = event.result
        self._dispatch(lane)

    def _wake_lanes(self) -> None:
        """Retries that are due, and ticks."""
        now = time.monotonic()
        every = self._handler.tick_every
        for partition in self._partitions.values():
            ticking = every is not None and self._may_tick(partition, now)
            passed = every is not None and self._has_passed(partition, now, every)
            if ticking or passed:
                assert every is not None
                partition.next_tick = now + every if ticking else partition.next_tick
                for camera in partition.checkpoints:
                    partition.lane(camera)
            for lane in partition.lanes.values():
                if lane.retry_at is not None and now >= lane.retry_at:
                    lane.retry_at = None
                    self._dispatch(lane)
                elif (ticking or passed) and self._wants_tick(lane):
                    record_ms = partition.record_ms if passed else None
                    self._dispatch(partition.add(Slot(lane.camera, tick=ticking, record_ms=record_ms)))

    def _wants_tick(self, lane: Lane) -> bool:
        if not lane.camera or lane.waiting or lane.busy:
            return False
        return self._committer.refusals.may_tick(lane.partition.number, lane.camera)

    def _may_tick(self, partition: Partition, now: float) -> bool:
        """Time counts only where everything that was sent is read: an outage or a backlog is no silence."""
        caught_up = partition.loaded and partition.at_end and self._kafka_up
        return caught_up and partition.number not in self._paused and now >= partition.next_tick

    def _has_passed(self, partition: Partition, now: float, every: float) -> bool:
        """Whether the partition's record time moved on enough to tell the cameras that sent nothing."""
        if not partition.loaded or now < partition.next_passed:
            return False
        if partition.record_ms - partition.passed_ms < every * 1000:
            return False
        partition.passed_ms, partition.next_passed = partition.record_ms, now + every
        return True

    # -- commit

    def _commit(self) -> None:
        """Hand what is finished to the committer, unless it is still busy."""
        if self._transaction is not None:
            self._watch(self._transaction)
            return
        batch = [(each, slots) for each in self._partitions.values() if (slots := each.finished(MOST_SLOTS))]
        if any(_written(slot) for _, slots in batch for slot in slots):
            metadata = self._consumer.consumer_group_metadata()
            self._transaction = Transaction(batch, metadata, doubtful=not self._kafka_up)
            self._committer.submit(self._transaction)

    def _watch(self, transaction: Transaction) -> None:
        """A client that hangs although Kafka is there is replaced."""
        patience = HANG_S + (transaction.replaced + 1) * self._settings.transaction_timeout_s
        if self._kafka_up and time.monotonic() - transaction.watched > patience:
            transaction.replaced += 1
            self._committer.replace(transaction)

    def _on_ended(self, event: Ended) -> None:
        self._transaction = None
        if event.error is not None:
            raise event.error
        if event.outcome is TransactionResult.COMMITTED:
            self._on_committed(event.transaction)
        else:
            self._on_aborted(event.transaction, event.outcome)

    def _on_committed(self, transaction: Transaction) -> None:
        now = time.monotonic()
        stage = self._stage
        self._kafka_seen(True)
        self._metrics.transactions.labels(stage, "committed").inc()
        self._metrics.commit_seconds.labels(stage).observe(now - transaction.started)
        for topic in transaction.outputs:
            self._metrics.outputs.labels(stage, topic).inc()
        for partition, slots in transaction.batch:
            partition.apply(slots)
            for slot in slots:
                if slot.record is None:
                    continue
                self._committer.refusals.committed(slot.record)
                self._metrics.records.labels(stage).inc()
                self._metrics.wait_seconds.labels(stage).observe(now - slot.received)
                if slot.result is not None and slot.result.dead_letter is not None:
                    self._metrics.dead_letters.labels(stage, slot.result.dead_letter.reason).inc()
        if transaction.deliveries:
            self._handler.committed(transaction.deliveries)

    def _on_aborted(self, transaction: Transaction, outcome: TransactionResult) -> None:
        """Seek back and drop what was not committed; where that is unknown, ask Kafka first."""
        self._metrics.transactions.labels(self._stage, outcome.name.lower()).inc()
        self._log.warning(
            "transaction aborted, reading again from the committed offsets", why=transaction.why
        )
        for partition, slots in transaction.batch:
            self._discard(slots)
            if self._partitions.get(partition.number) is not partition or partition.dead:
                continue
            if outcome is TransactionResult.ABORTED:
                self._rewind(partition, slots)
            else:
                self._retake(partition, slots)

    def _retake(self, partition: Partition, slots: list[Slot]) -> None:
        """Take the partition over from ourselves: offset and checkpoints as Kafka has them."""
        records = [slot.record for slot in (*slots, *partition.slots) if slot.record is not None]
        self._drop(partition)
        fresh = Partition(partition.number)
        fresh.seek_to = partition.committed if partition.committed is not None else _first(records)
        self._partitions[partition.number] = fresh
        self._loader.submit(self._load, fresh)
        self._update_ready()

    def _rewind(self, partition: Partition, slots: list[Slot]) -> None:
        records = [slot.record for slot in (*slots, *partition.slots) if slot.record is not None]
        claim = any(not slot.camera and slot.record is None for slot in slots)
        back = partition.committed if partition.committed is not None else _first(records)
        self._drop(partition)
        fresh = partition.fresh()
        self._partitions[partition.number] = fresh
        if claim:
            self._claim(fresh)
        if back is not None and records:
            fresh.seek_to = back
            self._seek(fresh)

    def _seek(self, partition: Partition) -> None:
        """Go back; the client refuses while it is busy starting the partition, so this may take a few
        turns.
        """
        assert partition.seek_to is not None
        try:
            self._consumer.seek(TopicPartition(self._topics.source, partition.number, partition.seek_to))
            partition.seek_to = None
        except KafkaException as error:
            self._log.warning("cannot seek yet", partition=partition.number, error=str(error.args[0]))

    def _drop(self, partition: Partition) -> None:
        partition.dead = True
        self._discard(partition.slots)
        for lane in partition.lanes.values():
            if lane.camera:
                self._handler.released(lane.camera, partition.number)

    def _discard(self, slots: Iterable[Slot]) -> None:
        """Results that will not be written."""
        outputs = [output for slot in slots if slot.result is not None for output in slot.result.outputs]
        if outputs:
            self._handler.dropped(outputs)

    def _settle(self, deadline: float) -> None:
        """Commit what is finished, without waiting for compute; give up at the deadline."""
        while time.monotonic() < deadline:
            self._take_events()
            self._commit()
            if self._transaction is None:
                return
            self._health.beat()
            with suppress(Empty):
                self._take(self._events.get(timeout=0.05))
        if self._transaction is not None:
            self._transaction.give_up("the partition was given back")

    # -- back-pressure

    def _hold_back(self) -> None:
        """Pause and resume so that nothing is read that cannot be used."""
        now = time.monotonic()
        if now - self._full_at > 0.05:
            self._full, self._full_at = frozenset(self._handler.over_budget()), now
        for each in self._partitions.values():
            if each.seek_to is not None and each.loaded:
                self._seek(each)
        held = {number for number, each in self._partitions.items() if self._must_wait(each)}
        self._paused &= set(self._partitions)
        self._switch(held - self._paused, self._consumer.pause)
        self._switch(self._paused - held, self._consumer.resume)
        for number in self._paused - held:
            self._partitions[number].next_tick = now + CATCH_UP_S
        self._paused = held
        stage = self._stage
        self._metrics.paused.labels(stage).set(len(held))
        self._metrics.in_flight.labels(stage).set(sum(len(each.slots) for each in self._partitions.values()))

    def _must_wait(self, partition: Partition) -> bool:
        return (
            not partition.loaded
            or partition.seek_to is not None
            or len(partition.slots) >= self._settings.in_flight_records
            or partition.bytes >= self._settings.in_flight_bytes
            or partition.number in self._full
        )

    def _switch(self, numbers: set[int], call: Callable[[list[TopicPartition]], None]) -> None:
        if numbers:
            call([TopicPartition(self._topics.source, number) for number in sorted(numbers)])

    # -- rebalancing

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        consumer.incremental_assign(given)
        self._assigned = True
        if not given:
            self._update_ready()
            return
        consumer.pause(given)
        self._log.info("partitions given", partitions=sorted(each.partition for each in given))
        for each in given:
            partition = Partition(each.partition)
            self._partitions[each.partition] = partition
            self._paused.add(each.partition)
            self._loader.submit(self._load, partition)
        self._update_ready()

    def _on_revoke(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        if self._closing:
            return
        self._settle(time.monotonic() + REVOKE_S)
        self._forget(taken, "partitions given back")
        consumer.incremental_unassign(taken)

    def _on_lost(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        if self._closing:
            return
        numbers = {each.partition for each in taken}
        transaction = self._transaction
        if transaction is not None and any(each.number in numbers for each, _ in transaction.batch):
            transaction.give_up("the partition was lost")
        self._forget(taken, "partitions lost")
        consumer.incremental_unassign(taken)

    def _forget(self, taken: list[TopicPartition], what: str) -> None:
        self._log.info(what, partitions=sorted(each.partition for each in taken))
        for each in taken:
            partition = self._partitions.pop(each.partition, None)
            self._paused.discard(each.partition)
            if partition is not None:
                self._drop(partition)
                self._committer.refusals.forget(each.partition)
                self._handler.revoked(each.partition)
        self._update_ready()

    def _load(self, partition: Partition) -> None:
        """On the takeover thread."""
        try:
            takeover = self._reader.take(
                partition.number, lambda: not partition.dead and not self._stopping.is_set()
            )
            if takeover is not None:
                self._events.put(_Loaded(partition, takeover))
        except Exception as error:
            self._events.put(_Loaded(partition, None, error))

    def _on_loaded(self, event: _Loaded) -> None:
        if event.error is not None:
            raise event.error
        partition, takeover = event.partition, event.takeover
        if partition.dead or takeover is None:
            return
        self._check_digests(takeover)
        partition.loaded = True
        partition.committed = takeover.offset
        if partition.seek_to is not None and takeover.offset is not None:
            partition.seek_to = takeover.offset
        partition.owner_epoch = takeover.owner_epoch
        partition.checkpoints = dict(takeover.checkpoints)
        for lane in partition.lanes.values():  # nothing was read before, but nothing is lost if it was
            checkpoint = partition.checkpoints.get(lane.camera)
            if checkpoint is not None:
                lane.stored = StoredCheckpoint(checkpoint, partition.owner_epoch, partition.number)
            self._dispatch(lane)
        self._claim(partition)
        self._metrics.takeovers.labels(self._stage).inc()
        self._log.info(
            "partition taken over",
            partition=partition.number,
            offset=partition.committed,
            owner_epoch=partition.owner_epoch,
            cameras=len(partition.checkpoints),
        )
        self._update_ready()

    def _claim(self, partition: Partition) -> None:
        """Ownership goes first into the partition's first transaction."""
        slot = Slot("", result=Result(checkpoint=Checkpoint()), received=time.monotonic())
        partition.slots.appendleft(slot)

    def _check_digests(self, takeover: Takeover) -> None:
        if self._settings.on_config_change == "restart":
            return
        for camera, checkpoint in takeover.checkpoints.items():
            if checkpoint.config_digest and checkpoint.config_digest != self._handler.config_digest:
                raise StartupError(
                    f"the checkpoint of camera {camera!r} in {self._topics.state} [{takeover.partition}] was "
                    f"written under configuration {checkpoint.config_digest}, this is "
                    f"{self._handler.config_digest}: restore the settings, or set "
                    "LOOKOUT_ON_CONFIG_CHANGE=restart to start those cameras anew"
                )

    # -- Kafka's state

    def _update_ready(self) -> None:
        waiting = [each.number for each in self._partitions.values() if not each.loaded]
        if not self._assigned:
            self._health.block("worker", "joining the group")
        elif waiting:
            self._health.block("worker", f"taking over partitions {sorted(waiting)}")
        else:
            self._health.clear("worker")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _FENCED:
            self._fatal = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._kafka_seen(False)

    def _on_statistics(self, text: str) -> None:
        facts = json.loads(text)
        states = [each["state"] for each in facts.get("brokers", {}).values()]
        self._kafka_seen("UP" in states)
        topic = facts.get("topics", {}).get(self._topics.source, {})
        for number, each in topic.get("partitions", {}).items():
            partition = self._partitions.get(int(number))
            end = each.get("ls_offset", -1)
            if partition is not None and end >= 0:
                done = (
                    partition.committed
                    if partition.committed is not None
                    else max(0, each.get("lo_offset", 0))
                )
                lag = max(0, end - done)
                self._metrics.lag.labels(self._stage, number).set(lag)
                age = partition.oldest_age_s(time.time()) if lag else 0.0
                self._metrics.lag_seconds.labels(self._stage, number).set(age)

    def _kafka_seen(self, up: bool) -> None:
        if up == self._kafka_up:
            return
        self._kafka_up = up
        if up:
            self._processor.kafka_is_back()
            for partition in self._partitions.values():
                partition.next_tick = time.monotonic() + CATCH_UP_S
            if self._transaction is not None:
                self._transaction.watched = time.monotonic()
            self._health.clear("kafka")
            self._log.info("Kafka is back")
        else:
            self._health.block("kafka", "no broker answers")
            self._committer.outage()
            if self._transaction is not None:
                self._transaction.doubtful = True
            self._log.warning(
                "no broker answers: nothing commits until one does", bootstrap=self._settings.bootstrap
            )


def _refusal(record: Record) -> DeadLetter | None:
    camera = record.camera
    if not camera:
        return DeadLetter("no-camera", "the record has no key: the camera's id")
    if not camera.isprintable() or "\ufffd" in camera or len(camera.encode()) > CAMERA_ID_BYTES:
        return DeadLetter(
            "bad-camera", f"the key {camera[:40]!r} is no camera id: printable UTF-8, 200 bytes at most"
        )
    if record.damage:
        return DeadLetter("bad-headers", record.damage)
    return None


def _traceparent(record: Record) -> tuple[tuple[str, bytes], ...]:
    return tuple(each for each in record.headers if each[0] == "traceparent")


def _first(records: list[Record]) -> int | None:
    return min((record.offset for record in records), default=None)


def _written(slot: Slot) -> bool:
    """Whether committing the slot writes anything."""
    result = slot.result
    return slot.record is not None or (
        result is not None and bool(result.outputs or result.checkpoint is not None or result.forget)
    )
