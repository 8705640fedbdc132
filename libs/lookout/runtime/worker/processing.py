"""Runs one attempt at a record or tick on a compute thread, and decides what a failure means."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog
from opentelemetry.trace import Status, StatusCode

from lookout.errors import BadRecordError, DeviceFailedError, LookoutRuntimeError, TransientError
from lookout.runtime.observe import logs, tracing
from lookout.runtime.observe.health import Health
from lookout.runtime.observe.limited_log import LimitedLog
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.failures import is_device_failure, is_transient
from lookout.runtime.worker.partitions import UNLOADED, Lane
from lookout.runtime.worker.records import (
    NOTHING,
    DeadLetter,
    Handler,
    Record,
    Result,
    Slot,
    StoredCheckpoint,
)
from lookout.runtime.worker.refusals import Refusal, oversize
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.watchdog import OverdueError, Running, Watchdog
from lookout.wire import WireError

# Pause after the first failed attempt. It doubles at every attempt up to `retry_max_s`; see `_pause`.
FIRST_PAUSE_S = 0.1
DEVICE_PAUSE_S = 2.0  # maximum pause between attempts after a device failure


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an attempt.

    Attributes:
        lane: The camera's lane.
        slot: The slot that was tried.
        result: The result; None: try again after `delay` seconds.
        delay: Seconds before the next attempt.
        fatal: The error that must end the process; None: there is none.
    """

    lane: Lane
    slot: Slot
    result: Result | None = None
    delay: float = 0.0
    fatal: Exception | None = None


class Processor:
    """Calls the handler. Any thread may use it, with one call at a time per lane.

    Args:
        settings: the service's settings.
        stage: name of the stage in spans and metrics.
        handler: the stage's logic.
        metrics: counts attempts and retries.
        health: blocked while the device fails.
        config_digest: returns the digest that checkpoints are marked with.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        stage: str,
        handler: Handler[Any],
        *,
        metrics: Metrics,
        health: Health,
        config_digest: Callable[[Handler[Any]], str] = lambda handler: handler.config_digest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._handler = handler
        self._metrics = metrics
        self._health = health
        self._config_digest = config_digest
        self._clock = clock
        self._log = logs.get("processing")
        self._lock = threading.Lock()
        self._device_failing: set[int] = set()  # slots, by id
        self._kafka_back_at = float("-inf")
        self.watchdog = Watchdog(settings.work_limit_s, clock)
        self._letters = LimitedLog(self._log, clock)

    def kafka_is_back(self) -> None:
        """Note the end of an outage. Time before it does not count towards a record's retry limit."""
        self._kafka_back_at = self._clock()

    def process(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> Finished:
        """Run one attempt at `slot`. It raises no Exception; an error that must end the process is in
        `fatal`."""
        try:
            if lane.partition.dead:
                return Finished(lane, slot, NOTHING)
            with structlog.contextvars.bound_contextvars(**_place(lane, slot)):
                return self._try(lane, slot, refusal)
        except OverdueError:
            return self._overdue(lane, slot)
        except Exception as error:
            self._log.exception("the runtime failed", camera=lane.camera)
            return Finished(lane, slot, fatal=LookoutRuntimeError(f"the worker's runtime failed: {error!r}"))

    def tick(self, lane: Lane, clock: bool, record_ms: int | None) -> Finished:
        """Tell the handler that time has passed. For speed, there is no span and no log context unless it
        fails.

        Args:
            lane: an idle camera.
            clock: whether to report the wall clock.
            record_ms: the partition's record time, if it is to be reported.
        """
        slot = Slot(lane.camera, tick=clock, record_ms=record_ms)
        if lane.partition.dead:
            return Finished(lane, slot, NOTHING)
        try:
            with self.watchdog.watching(lane, slot):
                self._load(lane)
                result = self._time_passed(lane, slot)
            return self._finished(lane, slot, result)
        except Exception:
            return self.process(lane, slot, None)  # run it again with a span, a log context and retries

    def _time_passed(self, lane: Lane, slot: Slot) -> Result:
        result = self._handler.tick(lane.state, time.time()) if slot.tick else None
        if result is None and slot.record_ms is not None:
            result = self._handler.passed(lane.state, slot.record_ms)
        return result or NOTHING

    def _try(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> Finished:
        started = self._clock()
        headers = slot.record.headers if slot.record is not None else ()
        slot.tries += 1
        with tracing.span(f"{self._stage} record", headers, camera=lane.camera) as span:
            try:
                with self.watchdog.watching(lane, slot):
                    result = self._fitting(lane, slot, self._ask(lane, slot, refusal))
                slot.traceparent = tracing.inject() if slot.record is not None else ()
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, str(error)))
                return self._failed(lane, slot, error)
        if slot.record is not None:
            self._metrics.handle_seconds.labels(self._stage).observe(self._clock() - started)
        return self._finished(lane, slot, result)

    def _finished(self, lane: Lane, slot: Slot, result: Result) -> Finished:
        self._device_works(slot)
        if result.dead_letter is not None:
            reason = result.dead_letter
            self._letters.warning(
                (lane.camera, reason.reason), "dead letter", reason=reason.reason, detail=reason.detail
            )
        if result.forget:
            lane.stored = None
            lane.give_up(self._handler)
        elif result.checkpoint is not None:
            lane.stored = StoredCheckpoint(result.checkpoint, lane.partition.number)
        return Finished(lane, slot, result)

    def _ask(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> Result:
        if refusal is not None and refusal.bare and refusal.reason is not None:
            return Result(dead_letter=refusal.reason)
        self._load(lane)
        if slot.forget:
            return replace(self._handler.forget(lane.state) or NOTHING, forget=True, checkpoint=None)
        if slot.record is None:
            return self._time_passed(lane, slot)
        if refusal is not None and refusal.reason is not None:
            return self._reject(lane, slot.record, refusal.reason)
        try:
            return self._handler.handle(lane.state, slot.record)
        except BadRecordError as error:
            return self._reject(lane, slot.record, DeadLetter(error.reason, error.detail))

    def _fitting(self, lane: Lane, slot: Slot, result: Result) -> Result:
        """Return the result, or a dead letter if one of the result's records is too large for its topic.

        Kafka would also reject the record, but then the whole transaction, with records of other cameras,
        would have to be repeated.
        """
        why = oversize(result)
        if why is None or slot.record is None:
            return result
        reason = DeadLetter("output-refused", why)
        self._handler.dropped(result.outputs)
        lane.state = UNLOADED  # the state includes changes that will not be committed
        self._load(lane)
        result = self._reject(lane, slot.record, reason)
        if oversize(result) is None:
            return result
        self._handler.dropped(result.outputs)
        lane.state = UNLOADED
        return Result(dead_letter=reason)

    def _load(self, lane: Lane) -> None:
        if lane.state is UNLOADED:
            lane.state = self._handler.load(lane.camera, self._known(lane.stored))

    def _reject(self, lane: Lane, record: Record, reason: DeadLetter) -> Result:
        extra = self._handler.rejected(lane.state, record, reason) or NOTHING
        return replace(extra, dead_letter=reason)

    def _known(self, stored: StoredCheckpoint | None) -> StoredCheckpoint | None:
        if stored is None or not stored.checkpoint.config_digest:
            return stored
        digest = self._config_digest(self._handler)
        return replace(stored, config_changed=stored.checkpoint.config_digest != digest)

    # -- failures

    def _overdue(self, lane: Lane, slot: Slot) -> Finished:
        """Make the record a dead letter at once, because another attempt would take as long."""
        lane.state = UNLOADED
        self._log.error("work on a record took too long and was stopped", limit_s=self._settings.work_limit_s)
        try:
            with self.watchdog.watching(lane, slot):  # `rejected` of the handler has its own time limit
                return self._give_up(lane, slot, self._overdue_letter())
        except OverdueError:
            lane.state = UNLOADED
            return self._finished(lane, slot, Result(dead_letter=self._overdue_letter()))

    def overdue(self, running: Running) -> None:
        """Set the result of work that does not end: a dead letter, with what the handler adds.

        The running work still uses the camera's state, so another copy of the state is loaded.
        """
        record, reason = running.slot.record, self._overdue_letter()
        if record is None:
            running.result = NOTHING
            return
        result = Result(dead_letter=reason)
        try:
            state = self._handler.load(running.lane.camera, self._known(running.lane.stored))
            result = replace(self._handler.rejected(state, record, reason) or NOTHING, dead_letter=reason)
        except Exception as error:
            self._log.error(
                "the handler's additions to a dead letter failed; writing it without", exc_info=error
            )
        running.result = result

    def _overdue_letter(self) -> DeadLetter:
        return DeadLetter("overdue", f"work on the record took longer than {self._settings.work_limit_s:g} s")

    def _failed(self, lane: Lane, slot: Slot, error: Exception) -> Finished:
        if isinstance(error, OverdueError):
            return self._overdue(lane, slot)
        while_loading = lane.state is UNLOADED
        # Handlers must raise TransientError before they change the state. After any other error, the state
        # may be changed in part.
        if not isinstance(error, TransientError):
            lane.state = UNLOADED
        if slot.failing_since is None:
            slot.failing_since = self._clock()
        if is_device_failure(error):
            return self._device_failed(lane, slot, error)
        self._device_works(slot)
        if is_transient(error):
            return self._transient(lane, slot, error)
        return self._unknown(lane, slot, error, while_loading)

    def _transient(self, lane: Lane, slot: Slot, error: Exception) -> Finished:
        self._metrics.retries.labels(self._stage, "transient").inc()
        if slot.tries & (slot.tries - 1) == 0:  # log only attempts 1, 2, 4, 8, ...
            self._log.warning(
                "an attempt failed; trying again", tries=slot.tries, error=f"{type(error).__name__}: {error}"
            )
        limit = getattr(error, "give_up_s", None)
        limit = self._settings.retry_limit_s if limit is None else limit
        assert slot.failing_since is not None
        if self._clock() - max(slot.failing_since, self._kafka_back_at) < limit:
            return Finished(lane, slot, delay=self._pause(slot))
        return self._give_up(
            lane, slot, DeadLetter("unavailable", f"a dependency was unavailable for {limit:g} s: {error}")
        )

    def _unknown(self, lane: Lane, slot: Slot, error: Exception, while_loading: bool) -> Finished:
        self._metrics.retries.labels(self._stage, "unknown").inc()
        if while_loading and lane.stored is not None and isinstance(error, WireError):
            return self._without_checkpoint(lane, slot, error)  # more attempts would fail in the same way
        slot.failures += 1
        self._log.error("the handler failed", tries=slot.failures, exc_info=error)
        if slot.failures < self._handler.attempts:
            return Finished(lane, slot, delay=self._pause(slot))
        if while_loading and lane.stored is not None:
            return self._without_checkpoint(lane, slot, error)
        return self._give_up(lane, slot, DeadLetter("internal-error", f"{type(error).__name__}: {error}"))

    def _without_checkpoint(self, lane: Lane, slot: Slot, error: Exception) -> Finished:
        self._log.error("the camera's checkpoint cannot be used; starting without it", error=str(error))
        lane.stored, slot.failures = None, 0
        return Finished(lane, slot, delay=self._pause(slot))

    def _give_up(self, lane: Lane, slot: Slot, reason: DeadLetter) -> Finished:
        """Make the record a dead letter, with what the handler adds, unless adding fails, too."""
        if slot.record is None:
            return Finished(lane, slot, NOTHING)
        try:
            self._load(lane)
            result = self._reject(lane, slot.record, reason)
        except Exception as error:
            lane.state = UNLOADED
            if is_device_failure(error):
                return self._device_failed(lane, slot, error)
            self._log.error(
                "the handler's additions to a dead letter failed; writing it without", exc_info=error
            )
            result = Result(dead_letter=reason)
        return self._finished(lane, slot, result)

    def _device_failed(self, lane: Lane, slot: Slot, error: Exception) -> Finished:
        """Retry the slot, or end the process after `device_retry_s`, because a new process gets a new device
        context. Nothing is committed for the record."""
        now = self._clock()
        with self._lock:
            # Cameras share the device. It counts as working again when it fails for none of them.
            self._device_failing.add(id(slot))
            if slot.device_failing_since is None:
                slot.device_failing_since = now
            self._health.block("device", f"the device failed: {error}")
        self._metrics.retries.labels(self._stage, "device").inc()
        self._log.error("the device failed", tries=slot.tries, exc_info=error)
        if now - slot.device_failing_since >= self._settings.device_retry_s:
            fatal = DeviceFailedError(
                f"the device has failed for {self._settings.device_retry_s:g} s: {error}"
            )
            return Finished(lane, slot, fatal=fatal)
        return Finished(lane, slot, delay=min(DEVICE_PAUSE_S, self._pause(slot)))

    def _device_works(self, slot: Slot) -> None:
        if slot.device_failing_since is None:
            return
        slot.device_failing_since = None
        with self._lock:
            self._device_failing.discard(id(slot))
            if not self._device_failing:
                self._health.clear("device")

    def _pause(self, slot: Slot) -> float:
        longest: float = min(self._settings.retry_max_s, FIRST_PAUSE_S * 2 ** min(slot.tries - 1, 16))
        # Randomised, so that cameras that failed together do not all retry at the same time.
        return longest * random.uniform(0.75, 1.25)


def _place(lane: Lane, slot: Slot) -> dict[str, Any]:
    record = slot.record
    if record is None:
        return {"camera": lane.camera, "partition": lane.partition.number}
    return {
        "camera": record.camera,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
