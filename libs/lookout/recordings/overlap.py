"""Runs decode and prefill one after the other, in turns, or at the same time (QuickVideo section 3.3).

This is independent of videos and models: a producer yields groups, a consumer takes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Mode(StrEnum):
    """The paper's three configurations.

    `SEQUENTIAL`: everything is decoded, then everything is prefilled. `INTERLEAVED`: a group is decoded, then
    prefilled, then the next group is decoded. `OVERLAPPED`: a thread decodes while groups are prefilled.
    """

    SEQUENTIAL = "sequential"
    INTERLEAVED = "interleaved"
    OVERLAPPED = "overlapped"


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a run took, in seconds.

    Attributes:
        mode: How decode and prefill shared the time.
        start_s: Until decoding could begin: time to open the recording, count its packets and, for the first
            recording, load the tower.
        decode_s: Per group, time spent waiting for the producer, without pauses because of a full queue.
        prefill_s: Per group, time spent in the consumer.
        total_s: From the beginning to the end of the last prefill, including `start_s`.
        answer_s: Time to decode the answers, after `total_s`.
    """

    mode: Mode
    start_s: float
    decode_s: tuple[float, ...]
    prefill_s: tuple[float, ...]
    total_s: float
    answer_s: float = 0.0

    @property
    def t_dec(self) -> float:
        """Time to decode all groups."""
        return sum(self.decode_s)

    @property
    def t_prefill(self) -> float:
        """Time to prefill all groups."""
        return sum(self.prefill_s)

    @property
    def bound(self) -> float:
        """The lower bound of Equation 3: max(t_dec + last prefill, t_prefill + first decode) + start."""
        if not self.prefill_s:
            return self.start_s
        late = self.t_dec + self.prefill_s[-1]
        early = self.t_prefill + self.decode_s[0]
        return max(late, early) + self.start_s

    @property
    def ideal(self) -> float:
        """The time that a perfect overlap of exactly these groups takes; at least the bound of Equation 3.

        f_i = max(f_{i-1}, d_i) + p_i, where d_i is the time at which group i is decoded.
        """
        end = decoded = self.start_s
        for decode, prefill in zip(self.decode_s, self.prefill_s, strict=True):
            decoded += decode
            end = max(end, decoded) + prefill
        return end

    @property
    def efficiency(self) -> float:
        """The bound of Equation 3 divided by the time taken; 1 is perfect."""
        return self.bound / self.total_s if self.total_s > 0 else 1.0

    def summary(self) -> dict[str, float | str]:
        """Return the figures that a result reports."""
        return {
            "mode": self.mode.value,
            "start_s": round(self.start_s, 3),
            "t_dec": round(self.t_dec, 3),
            "t_prefill": round(self.t_prefill, 3),
            "t_total": round(self.total_s, 3),
            "t_answer": round(self.answer_s, 3),
            "bound": round(self.bound, 3),
            "efficiency": round(self.efficiency, 3),
        }


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    """A group, and the time that the producer spent on it."""

    group: T
    took: float


class _Failure:
    """An exception that the producer raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def run_groups(
    groups: Iterable[T],
    consume: Callable[[T], R],
    *,
    mode: Mode = Mode.OVERLAPPED,
    waiting: int = 2,
    start_s: float = 0.0,
    busy: Callable[[], float] | None = None,
) -> tuple[list[R], Timings]:
    """Consume every group once, in order.

    Args:
        groups: The producer: an iterator that returns a group once it is ready. For `INTERLEAVED`, it must
            not work ahead.
        consume: Prefills a group.
        mode: How producer and consumer share the time.
        waiting: Groups that may wait for the consumer.
        start_s: Seconds spent before the call, added to the total.
        busy: Returns the seconds that the producer has worked so far, if the producer works ahead of its
            iterator; called after every group.

    Returns:
        What `consume` returned for every group, and the timings.

    Raises:
        Exception: Whatever producer or consumer raised. The other one is stopped; no thread keeps running.
    """
    begin = time.perf_counter()
    timed_groups: Iterable[_Made[T]] = _timed(groups, busy)
    if mode is Mode.SEQUENTIAL:
        # The baseline for overlap: all decoding, then all prefill.
        timed_groups = list(timed_groups)
    results: list[R] = []
    decode: list[float] = []
    prefill: list[float] = []
    source = _ahead(timed_groups, waiting) if mode is Mode.OVERLAPPED else iter(timed_groups)
    try:
        for item in source:
            decode.append(item.took)
            started = time.perf_counter()
            results.append(consume(item.group))
            prefill.append(time.perf_counter() - started)
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
    total = time.perf_counter() - begin + start_s
    return results, Timings(mode, start_s, tuple(decode), tuple(prefill), total)


def _timed(groups: Iterable[T], busy: Callable[[], float] | None) -> Iterator[_Made[T]]:
    clock = busy or time.perf_counter
    source = iter(groups)
    try:
        while True:
            before = clock()
            try:
                group = next(source)
            except StopIteration:
                return
            took = clock() - before
            yield _Made(group, took)
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _ahead(made: Iterable[_Made[T]], waiting: int) -> Iterator[_Made[T]]:
    """Consume `made` on a thread, at most `waiting` groups ahead."""
    queue: Queue[_Made[T] | _Failure | None] = Queue(maxsize=waiting)
    stopped = threading.Event()

    def offer(item: _Made[T] | _Failure | None) -> None:
        while not stopped.is_set():
            try:
                # With a time-out: if the consumer fails, nobody takes items, so `stopped` must be checked.
                queue.put(item, timeout=0.1)
            except Full:
                continue
            return

    def produce() -> None:
        source = iter(made)
        try:
            for item in source:
                offer(item)
                if stopped.is_set():
                    break
            offer(None)
        except BaseException as error:
            # The consumer raises the error in its thread; raised here, it would reach nobody.
            offer(_Failure(error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=produce, name="recording-producer", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = queue.get(timeout=0.5)
            except Empty:
                continue
            if item is None:
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        stopped.set()
        # The caller closes the recording next, but the thread may still be reading it.
        thread.join()
