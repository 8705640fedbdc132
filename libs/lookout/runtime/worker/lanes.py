"""Decides which camera computes next: queued records, due retries, and timer ticks for idle cameras."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from lookout.runtime.worker.partitions import Lane, Partition
from lookout.runtime.worker.processing import Finished
from lookout.runtime.worker.records import Handler, Result, Slot
from lookout.runtime.worker.refusals import Refusal, Refusals

#: number of cameras whose timer ticks are handed to a compute thread together
TICKED_TOGETHER = 16
FORGET_EVERY_S = 60.0
DAY_MS = 86_400_000


class Processes(Protocol):
    """Runs slots on compute threads (`Processor`)."""

    def process(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> Finished: ...
    def tick(self, lane: Lane, clock: bool, record_ms: int | None) -> Finished: ...


class Lanes:
    """Hands slots to compute threads, one at a time per camera. Only the polling thread calls it.

    Args:
        processor: runs an attempt at a slot.
        handler: has the interval of ticks, and is told about outputs that will never be written.
        refusals: what Kafka has rejected.
        compute: executor for the attempts.
        finished: called on a compute thread with the result of each attempt; it must make the polling thread
            call `finish` with the result.
        forget_after_days: days without a record after which a camera is forgotten; None: never.
        clock: monotonic seconds.
        wall_ms: Unix milliseconds.
    """

    def __init__(
        self,
        processor: Processes,
        handler: Handler[Any],
        refusals: Refusals,
        compute: Executor,
        finished: Callable[[Finished], None],
        *,
        forget_after_days: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._processor = processor
        self._handler = handler
        self._refusals = refusals
        self._compute = compute
        self._finished = finished
        self._forget_after_days = forget_after_days
        self._clock = clock
        self._wall_ms = wall_ms
        self._retries: list[tuple[float, int, Lane]] = []
        self._order = count()
        self._closed = False
        self.computing = 0

    def close(self) -> None:
        """Start no more work."""
        self._closed = True

    def dispatch(self, lane: Lane) -> None:
        """Hand the camera's next slot to a compute thread, if the camera has one and is not busy."""
        partition = lane.partition
        if self._closed or lane.busy or not lane.waiting or lane.retry_at is not None:
            return
        if not partition.loaded or partition.dead:
            return
        slot = lane.waiting[0]
        lane.busy = True
        self.computing += 1
        refusal = self._refusals.of(slot.record) if slot.record is not None else None
        self._compute.submit(self._process, lane, slot, refusal)

    def finish(self, event: Finished) -> bool:
        """Handle the end of an attempt.

        Returns:
            Whether a slot is finished, so that its partition may have something to commit.

        Raises:
            Exception: `event.fatal`, which must end the process.
        """
        lane, slot, partition = event.lane, event.slot, event.lane.partition
        self.computing -= 1
        lane.busy = False
        if event.fatal is not None:
            raise event.fatal
        # Discard the result if another worker owns the partition now, or if it is being read again.
        if partition.dead:
            if event.result is not None and event.result.outputs:
                self._handler.dropped(event.result.outputs)
            lane.give_up(self._handler)
            return False
        if slot.result is not None:  # the slot was overdue, and already has a result
            if event.result is not None and event.result.outputs:
                self._handler.dropped(event.result.outputs)
            return False
        ordered = bool(lane.waiting) and lane.waiting[0] is slot
        if event.result is None:
            if not ordered:  # a failed tick is inserted into the order, to be retried
                self._insert(lane, slot)
            lane.retry_at = self._clock() + event.delay
            # The counter breaks ties between equal times: lanes cannot be compared.
            heappush(self._retries, (lane.retry_at, next(self._order), lane))
            return False
        slot.result = event.result
        if ordered:
            lane.waiting.popleft()
        elif not event.result.empty:
            partition.insert(slot, lane)
        self.dispatch(lane)
        return ordered or not event.result.empty

    def abandon(self, lane: Lane, slot: Slot, result: Result) -> None:
        """Give a slot its result although its attempt is still running. The camera stays busy, because the
        process is about to end."""
        slot.result = result
        if lane.waiting and lane.waiting[0] is slot:
            lane.waiting.popleft()

    def wake(self, partitions: Iterable[Partition], catches_up: Callable[[Partition], bool]) -> None:
        """Start due retries, send timer ticks to idle cameras, and forget cameras that have been silent for
        long.

        Args:
            partitions: the assigned partitions.
            catches_up: returns whether everything that was sent to a partition has been read. Wall-clock
                ticks and forgetting require it, because an outage or a backlog is not silence.
        """
        now = self._clock()
        while self._retries and self._retries[0][0] <= now:
            lane = heappop(self._retries)[2]
            if lane.retry_at is not None and lane.retry_at <= now:
                lane.retry_at = None
                self.dispatch(lane)
        for partition in partitions:
            if partition.loaded and not partition.dead:
                self._pass_time(partition, now, catches_up)

    def _insert(self, lane: Lane, slot: Slot) -> None:
        lane.partition.insert(slot, lane)  # without a result, so nothing after it is committed yet
        lane.waiting.appendleft(slot)

    def _pass_time(self, partition: Partition, now: float, catches_up: Callable[[Partition], bool]) -> None:
        interval = self._handler.tick_every
        due = interval is not None and now >= partition.next_tick
        forgets = now >= partition.next_forget
        passed = interval is not None and self._has_passed(partition, now, interval)
        caught_up = (due or forgets) and catches_up(partition)
        if forgets and caught_up:
            partition.next_forget = now + FORGET_EVERY_S
            self._forget(partition)
        if interval is not None and ((due and caught_up) or passed):
            if due and caught_up:
                partition.next_tick = now + interval
            self._tick(partition, due and caught_up, partition.record_ms if passed else None)

    def _has_passed(self, partition: Partition, now: float, every: float) -> bool:
        """Whether the partition's record time has advanced enough to report it to idle cameras."""
        if now < partition.next_passed or partition.record_ms - partition.passed_ms < every * 1000:
            return False
        partition.passed_ms, partition.next_passed = partition.record_ms, now + every
        return True

    def _tick(self, partition: Partition, clock: bool, record_ms: int | None) -> None:
        # After a takeover, a silent camera has a checkpoint but no lane. It needs a lane to get ticks.
        for camera in partition.checkpoints:
            partition.lane(camera)
        idle = [lane for lane in partition.lanes.values() if self._wants_tick(lane)]
        if self._closed:
            return
        for first in range(0, len(idle), TICKED_TOGETHER):
            lanes = idle[first : first + TICKED_TOGETHER]
            for lane in lanes:
                lane.busy = True
            self.computing += len(lanes)
            self._compute.submit(self._tick_all, lanes, clock, record_ms)

    def _wants_tick(self, lane: Lane) -> bool:
        if not lane.camera or not lane.idle or lane.retry_at is not None:
            return False
        return self._refusals.may_tick(lane.partition.number, lane.camera)

    def _forget(self, partition: Partition) -> None:
        days = self._forget_after_days
        oldest = None if days is None else self._wall_ms() - days * DAY_MS
        for camera, active_ms in list(partition.active_ms.items()):
            if camera not in partition.checkpoints:
                continue
            silent = oldest is not None and active_ms < oldest
            if (silent or self._handler.ends(camera, active_ms)) and partition.lane(camera).idle:
                self.dispatch(partition.add(Slot(camera, forget=True)))

    # -- on compute threads

    def _process(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> None:
        self._finished(self._processor.process(lane, slot, refusal))

    def _tick_all(self, lanes: Collection[Lane], clock: bool, record_ms: int | None) -> None:
        for lane in lanes:
            self._finished(self._processor.tick(lane, clock, record_ms))
