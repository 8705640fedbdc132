"""The Kafka worker: one thread polls and commits, others compute. Every record takes effect exactly once.

The polling thread reads records, keeps the order of each partition, and hands each camera's next record to a
compute thread. The results up to a partition's first unfinished record are committed, with their offsets, in
one short transaction. Nothing else writes. The polling thread never waits for compute threads. Its calls to
Kafka return after at most a second, and it resumes them in its next loop.

This module connects the parts: `polling` reads, `lanes` decides which camera computes next, `processing` runs
an attempt, `ownership` takes partitions over and gives them back, `committing` and `transactions` write, and
`backpressure` pauses partitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from lookout.errors import LookoutRuntimeError, StartupError
from lookout.runtime.observe import logs
from lookout.runtime.observe.health import Health
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.backpressure import Backpressure
from lookout.runtime.worker.committing import Commits
from lookout.runtime.worker.fleet_check import check_group, client_id, is_compatible, mark
from lookout.runtime.worker.lanes import Lanes
from lookout.runtime.worker.ownership import Ownership
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.polling import Source
from lookout.runtime.worker.processing import Finished, Processor
from lookout.runtime.worker.records import (
    WORKER_REASONS,
    DeadLetter,
    Handler,
    Output,
    Record,
    Result,
    Slot,
)
from lookout.runtime.worker.refusals import Refusals, dead_letter
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.supervision import Supervisor
from lookout.runtime.worker.takeover import StateReader, Takeover, Takeovers
from lookout.runtime.worker.transactions import Committer, Ended, Topics
from lookout.runtime.worker.unreadable import UnreadableBatches
from lookout.runtime.worker.watchdog import GRACE_S
from lookout.text import clean
from lookout.wire import (
    CAMERA_ID_BYTES,
    FRAMES,
    IS_CANARY,
    SEGMENTS,
    headers as names,
    is_camera_id,
    prefixed,
)

# Maximum waits for a message. They are short, because finished work is noticed only between two polls.
IDLE_S = 0.1
BUSY_S = 0.01
REVOKE_S = 5.0  # seconds for commits before partitions are given back; the whole group waits meanwhile
CATCH_UP_S = 2.0  # seconds after reading resumes before a lack of records counts as silence


@dataclass(frozen=True, slots=True)
class _Loaded:
    partition: Partition | None
    takeover: Takeover | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Waits:
    partition: Partition
    why: str


class Worker:
    """Runs a handler over its share of one topic. `run` is the polling thread; any thread may call `stop`."""

    def __init__(
        self,
        settings: ServiceSettings,
        stage: str,
        topics: Topics,
        handler: Handler[Any],
        *,
        metrics: Metrics | None = None,
        health: Health | None = None,
        supervisor: Supervisor | None = None,
        load_s: float = 0.0,
    ) -> None:
        self._settings = settings
        self._load_s = load_s
        self._stage = stage
        self._topics = topics
        self._handler = handler
        self._metrics = metrics or Metrics(stage)
        self._health = health or Health(settings.stall_s)
        self._supervisor = supervisor or Supervisor()
        self._group = settings.group or prefixed(stage)
        self._identity = f"{self._group}.{settings.instance}"
        self._log = logs.get("worker")
        self._stopping = threading.Event()
        self._events: SimpleQueue[Finished | _Loaded | _Waits | Ended] = SimpleQueue()
        self._kafka_up = True

    # -- life

    def stop(self) -> None:
        """Make `run` commit finished work, give partitions back, and return."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`.

        Raises:
            FencedError: another process has taken over this one's identity.
            DeviceFailedError: the device fails permanently.
            StartupError: the group's members, or the checkpoints, have another configuration.
            ThreadDiedError: a supervised thread died.
        """
        own = client_id(
            self._stage,
            self._handler.shared_settings,
            self._settings.release,
            metadata.version("lookout-fleet"),
        )
        # Check before joining, because joining would already take partitions from the other members.
        check_group(self._settings, self._group, own)
        self._build()
        try:
            self._source.open(self._settings, self._group, own, self._load_s)
            while not self._stopping.is_set():
                self._turn()
            self._drain()
        finally:
            self._close()

    def _build(self) -> None:
        settings, handler, metrics = self._settings, self._handler, self._metrics
        metrics.begin(handler.events, (*WORKER_REASONS, *handler.reasons))
        refusals = Refusals()
        self._committer = Committer(
            settings,
            self._stage,
            self._identity,
            self._topics,
            refusals=refusals,
            digest=lambda: self._mark(handler),
            ended=self._events.put,
        )
        self._takeovers = Takeovers(
            lambda: StateReader(settings, self._group, self._topics.source, self._topics.state),
            lambda partition, takeover, error: self._events.put(_Loaded(partition, takeover, error)),
            lambda partition, why: self._events.put(_Waits(partition, why)),
        )
        self._compute = ThreadPoolExecutor(settings.threads, thread_name_prefix="compute")
        self._processor = Processor(
            settings, self._stage, handler, metrics=metrics, health=self._health, config_digest=self._mark
        )
        self._lanes = Lanes(
            self._processor,
            handler,
            refusals,
            self._compute,
            self._events.put,
            forget_after_days=settings.forget_after_days,
        )
        self._ownership = Ownership(
            handler,
            self._takeovers,
            refusals=refusals,
            metrics=metrics,
            health=self._health,
            foreign=self._foreign,
            own=lambda committed: is_compatible(committed, handler.shared_settings),
            letter=self._checkpoint_letter,
            refusal=self._refusal,
            finished=self._finished,
            limit_s=settings.takeover_limit_s,
            begin=self._begin,
        )
        self._build_reading(refusals)

    def _build_reading(self, refusals: Refusals) -> None:
        """Build the parts that commit, read and pause. Lanes and ownership must exist already."""
        settings, handler, metrics = self._settings, self._handler, self._metrics
        self._commits = Commits(
            self._committer,
            handler,
            refusals,
            metrics,
            latency_s=settings.latency_s,
            first=self._topics.source == SEGMENTS.name,
            in_flight=settings.in_flight_records,
            paused=lambda: self._backpressure.paused,
            timeout_s=settings.transaction_timeout_s,
            again=self._ownership.again,
        )
        self._build_source()

    def _build_source(self) -> None:
        """Build the parts that read the topic, limit reading, and handle unreadable batches."""
        self._source = Source(self._topics.source, self._identity, self)
        self._unreadable = UnreadableBatches(
            self._topics.source,
            self._ownership.current,
            self._health,
            high=self._source.high,
            finished=self._commits.may_have,
        )
        self._backpressure = Backpressure(
            self._source,
            records=self._settings.in_flight_records,
            bytes_=self._settings.in_flight_bytes,
            over_budget=self._handler.over_budget,
        )

    def _finished(self, partition: Partition) -> None:
        self._commits.may_have(partition)

    def _mark(self, handler: Handler[Any]) -> str:
        return mark(handler.shared_settings, handler.config_digest)

    def _drain(self) -> None:
        """Let running work finish for up to `drain_s` seconds, then commit what is finished."""
        self._health.block("worker", "stopping")
        self._lanes.close()
        deadline = time.monotonic() + self._settings.drain_s
        while time.monotonic() < deadline and (self._lanes.computing or self._commits.transaction):
            self._turn()
        self._settle(time.monotonic() + min(REVOKE_S, self._settings.drain_s + 1.0))

    def _close(self) -> None:
        self._ownership.close()
        # Do not wait for compute threads, because a call into C may never end. Their results are discarded
        # (`Ownership.close`).
        self._compute.shutdown(wait=False, cancel_futures=True)
        self._committer.close()
        self._takeovers.close()
        # Leave the group last, so that no other worker gets partitions while a transaction with them is open.
        self._source.close()
        self._health.block("worker", "stopped")

    # -- one turn

    def _turn(self) -> None:
        self._health.beat()
        self._supervisor.check()
        self._take_events()
        partitions = self._ownership.current
        self._lanes.wake(partitions.values(), self._catches_up)
        self._look_for_overdue()
        self._commits.step(self._source.metadata, self._kafka_up, computing=self._lanes.computing > 0)
        for number in self._backpressure.update(partitions):
            # Delay ticks until the backlog is read, which the worker could otherwise take for silence.
            partitions[number].next_tick = time.monotonic() + CATCH_UP_S
        # Read last, because reading waits and rebalances happen in it. Finished work is being committed by
        # now.
        self._source.read(self._wait_s())

    def _look_for_overdue(self) -> None:
        """Interrupt work that takes too long. If it does not stop, commit a dead letter for it and end the
        process.

        Raises:
            LookoutRuntimeError: Work did not stop, and its dead letter is committed or cannot be.
        """
        overdue, stuck = self._processor.watchdog.find_overdue()
        if overdue:
            places = ", ".join(_named(running.slot) for running in overdue)
            self._health.block("work", f"work takes longer than {self._settings.work_limit_s:g} s: {places}")
        else:
            self._health.clear("work")
        for running in stuck:
            partition = running.lane.partition
            if not running.reported:
                running.reported = True
                self._log.error(
                    "work on a record cannot be stopped, so this process ends", what=_named(running.slot)
                )
                # On a separate thread, because the handler may wait for a lock that the work holds.
                threading.Thread(target=self._processor.overdue, args=(running,), daemon=True).start()
            if running.result is not None and running.slot.result is None:
                self._lanes.abandon(running.lane, running.slot, running.result)
                self._commits.may_have(partition)
            late = running.told_at is not None and time.monotonic() - running.told_at > 3 * GRACE_S
            if (
                late
                or partition.dead
                or (running.slot not in partition.slots and self._commits.transaction is None)
            ):
                raise LookoutRuntimeError(f"work cannot be stopped: {_named(running.slot)}")

    def _wait_s(self) -> float:
        """Return the seconds that the next poll may wait for a message."""
        quiet = BUSY_S if self._lanes.computing or self._commits.transaction else IDLE_S
        commit = self._commits.wait_s(computing=self._lanes.computing > 0)
        return quiet if commit is None else min(quiet, commit)

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            self._take(event)

    def _take(self, event: Finished | _Loaded | _Waits | Ended) -> None:
        if isinstance(event, Finished):
            if self._lanes.finish(event):
                self._commits.may_have(event.lane.partition)
        elif isinstance(event, Ended):
            self._commits.end(event)
            if event.outcome.committed:
                self.on_kafka(True)
        elif isinstance(event, _Waits):
            if self._kafka_up:
                self._ownership.waits(event.partition, event.why)
        elif event.error is not None:
            raise event.error
        elif event.partition is not None and event.takeover is not None:
            self._ownership.loaded(event.partition, event.takeover)

    def _catches_up(self, partition: Partition) -> bool:
        """Whether everything that was sent to a partition has been read, so that a lack of records means
        silence."""
        return partition.at_end and self._kafka_up and partition.number not in self._backpressure.paused

    def _begin(self, number: int) -> int:
        """Return the offset at which to start in a partition without a committed offset."""
        if not (IS_CANARY and self._topics.source == FRAMES.name):
            return int(OFFSET_BEGINNING)
        # A canary starts with new windows. Back-tests are for windows that the fleet has already answered.
        end = self._source.high(number)
        return int(OFFSET_END) if end is None else end

    def _settle(self, deadline: float) -> None:
        """Commit finished work without waiting for compute threads. At the deadline, abort the
        transaction."""
        while time.monotonic() < deadline:
            self._take_events()
            self._commits.step(self._source.metadata, self._kafka_up, at_once=True)
            if self._commits.transaction is None:
                return
            self._health.beat()
            with suppress(Empty):
                self._take(self._events.get(timeout=0.05))
        self._commits.give_up("the partition was given back")

    def _foreign(self, takeover: Takeover) -> frozenset[str]:
        """Return the cameras whose checkpoint was written with other shared settings; none if the setting
        `on_config_change` is `restart`."""
        if self._settings.on_config_change == "restart":
            return frozenset()
        shared = self._handler.shared_settings
        return frozenset(
            camera
            for camera, checkpoint in takeover.checkpoints.items()
            if not is_compatible(checkpoint.config_digest, shared)
        )

    def _checkpoint_letter(
        self, partition: int, offset: int, camera: str, value: bytes, why: str
    ) -> Output | None:
        """Return the dead letter of an unusable checkpoint; None if it is too large."""
        record = Record(self._topics.state, partition, offset, camera, value)
        output, _ = dead_letter(
            record,
            DeadLetter("bad-checkpoint", why),
            stage=self._stage,
            topic=self._topics.dead_letters,
            limit=self._topics.dead_letter_bytes,
        )
        return output

    def _refusal(self, takeover: Takeover) -> StartupError:
        shared = ", ".join(f"{name}={value}" for name, value in self._handler.shared_settings.items())
        camera = clean(min(self._foreign(takeover)))
        return StartupError(
            f"the checkpoint of camera {camera!r} in {self._topics.state} [{takeover.partition}] was written "
            f"with other shared settings than this process has ({shared}); restore the previous settings, or "
            "set LOOKOUT_ON_CONFIG_CHANGE=restart to start such cameras without a checkpoint"
        )

    # -- `polling.Listener`

    def on_assigned(self, numbers: Collection[int]) -> None:
        """Take over partitions that were given to this worker."""
        self._ownership.assigned(numbers)

    def on_revoked(self, numbers: Collection[int]) -> None:
        """Commit finished work of partitions, then give them back."""
        self._settle(time.monotonic() + REVOKE_S)
        self._gone(numbers, "partitions given back")

    def on_lost(self, numbers: Collection[int]) -> None:
        """Drop partitions that another worker already owns. Their work can no longer be committed."""
        self._commits.give_up("the partition was lost", numbers)
        self._gone(numbers, "partitions lost")

    def _gone(self, numbers: Collection[int], what: str) -> None:
        for number in numbers:
            self._backpressure.gone(number)
        self._ownership.gone(numbers, what)
        self._unreadable.tell()

    def on_record(self, record: Record) -> None:
        """Queue a record from Kafka in its camera's lane; a record that must be refused becomes a dead
        letter.
        """
        self._health.clear("topic")
        partition = self._ownership.current.get(record.partition)
        if partition is None or not partition.in_place or self._stopping.is_set():
            return  # the record is not committed, so it will be read again, here or elsewhere
        if self._unreadable.passed(partition):
            return
        partition.at_end = False
        partition.record_ms = max(partition.record_ms, record.timestamp_ms)
        partition.note_read(record.offset, record.timestamp_ms, lambda: self._source.low(record.partition))
        if partition.loss is not None:
            record = replace(record, loss=partition.loss)
        slot = Slot(record.camera, record, traceparent=_traceparent(record), arrived_ms=self._arrived(record))
        if (reason := _refusal(record)) is None:
            self._lanes.dispatch(partition.add(slot))
            return
        # The record keeps its place in the order, so that its offset is committed, but has no camera, because
        # keys that producers invent must not create lanes.
        slot.camera = ""
        partition.add(slot).waiting.pop()
        slot.result = Result(dead_letter=reason)
        self._commits.may_have(partition)

    def on_end(self, number: int, offset: int) -> None:
        """Note that a partition has been read to its end, which is at `offset`."""
        partition = self._ownership.current.get(number)
        if partition is not None and partition.in_place and not self._unreadable.passed(partition):
            partition.at_end, partition.end = True, offset
        self._health.clear("topic")

    def on_broken_batch(self, number: int, offset: int, why: str) -> None:
        """Note that the batch of records at this offset cannot be read."""
        self._unreadable.met(number, offset, why)

    def on_unreadable(self, why: str) -> None:
        """Note that the topic cannot be read."""
        self._health.block("topic", why)

    def on_kafka(self, up: bool) -> None:
        """Note whether a broker answers."""
        if up == self._kafka_up:
            return
        self._kafka_up = up
        if up:
            self._processor.kafka_is_back()
            self._commits.kafka_is_back()
            self._ownership.kafka_is_back()
            for partition in self._ownership.current.values():
                partition.next_tick = time.monotonic() + CATCH_UP_S
            self._health.clear("kafka")
            self._log.info("a broker answers again")
        else:
            self._health.block("kafka", "no broker answers")
            self._committer.outage()
            self._log.warning(
                "no broker answers, so nothing can be committed", bootstrap=self._settings.bootstrap
            )

    def on_watermarks(self, ends: dict[int, tuple[int, int]]) -> None:
        """Update metrics with the first and last offset of each partition. Called about once a second."""
        metrics, stage = self._metrics, self._stage
        records = size = cameras = 0
        for number, partition in self._ownership.current.items():
            records, size = records + len(partition.slots), size + partition.bytes
            cameras += len(partition.checkpoints)
            if number in ends:
                low, end = ends[number]
                self._count_lost(partition, low)
                lag = max(0, end - partition.done_to(low))
                metrics.lag.labels(stage, str(number)).set(lag)
                metrics.lag_seconds.labels(stage, str(number)).set(_age_s(partition) if lag else 0.0)
        metrics.in_flight.labels(stage).set(records)
        metrics.in_flight_bytes.labels(stage).set(size)
        metrics.cameras.labels(stage).set(cameras)
        metrics.paused.labels(stage).set(len(self._backpressure.paused))

    def _count_lost(self, partition: Partition, low: int) -> None:
        if lost := partition.lost(low):
            self._metrics.lost_offsets.labels(self._stage).inc(lost)
            self._log.error(
                "retention removed records before they were read",
                partition=partition.number,
                offsets=lost,
                first_left=low,
            )

    def _arrived(self, record: Record) -> int:
        """Return when the segment from which the record derives reached Kafka, Unix milliseconds. For a
        segment, that is always Kafka's time stamp, because its producer's headers are untrusted."""
        arrived = None if record.topic == SEGMENTS.name else names.number(record.headers, names.ARRIVED)
        return record.timestamp_ms if arrived is None else arrived


def _named(slot: Slot) -> str:
    if slot.record is None:
        return f"camera {slot.camera}, timer tick"
    return f"camera {slot.camera}, {slot.record.topic} [{slot.record.partition}] offset {slot.record.offset}"


def _age_s(partition: Partition) -> float:
    """Return the age of the oldest uncommitted record in seconds. If none was read yet, return the age of the
    last committed record; 0 without one."""
    oldest = next((slot.record.timestamp_ms for slot in partition.slots if slot.record is not None), None)
    oldest = partition.committed_ms if oldest is None else oldest
    return 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)


def _refusal(record: Record) -> DeadLetter | None:
    camera = record.camera
    if not camera:
        return DeadLetter("no-camera", "the record has no key; its key must be the camera's id")
    if not is_camera_id(camera):
        return DeadLetter(
            "bad-camera",
            f"the key {camera[:40]!r} is not a camera id, which is printable UTF-8 of at most "
            f"{CAMERA_ID_BYTES} bytes",
        )
    if record.damage:
        return DeadLetter("bad-headers", record.damage)
    return None


def _traceparent(record: Record) -> tuple[tuple[str, bytes], ...]:
    return tuple(header for header in record.headers if header[0] == names.TRACEPARENT)
