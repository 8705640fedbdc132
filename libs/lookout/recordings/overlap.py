"""Runs decode and prefill one after the other, in turns, or at the same time (QuickVideo section 3.3).

This module knows nothing of videos and models: a producer yields groups, and a consumer takes them.
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

    `SEQUENTIAL`: all groups are decoded, then all are prefilled. `INTERLEAVED`: each group is decoded and
    prefilled before the next group is decoded. `OVERLAPPED`: a thread decodes later groups while earlier ones
    are prefilled.
    """

    SEQUENTIAL = "sequential"
    INTERLEAVED = "interleaved"
    OVERLAPPED = "overlapped"


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a run took, in seconds.

    Attributes:
        mode: How decode and prefill shared the time.
        start_s: Time before decoding began: opening the recording, counting its packets and, for the first
            recording, loading the tower.
        decode_s: Time that the producer spent on each group, without pauses because the queue was full.
        prefill_s: Time that the consumer spent on each group.
        total_s: Time from the beginning, including `start_s`, to the end of the last prefill.
        answer_s: Time to answer the questions, as measured by the caller.
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
        """The least possible total in seconds (Equation 3): start + max(t_dec + last prefill, t_prefill +
        first decode)."""
        if not self.prefill_s:
            return self.start_s
        late = self.t_dec + self.prefill_s[-1]
        early = self.t_prefill + self.decode_s[0]
        return max(late, early) + self.start_s

    @property
    def ideal(self) -> float:
        """The total in seconds if exactly these groups overlapped perfectly; at least `bound`.

        The prefill of group i ends at f_i = max(f_{i-1}, d_i) + p_i, where d_i is the time at which the group
        is decoded and p_i is the time that its prefill takes.
        """
        end = decoded = self.start_s
        for decode, prefill in zip(self.decode_s, self.prefill_s, strict=True):
            decoded += decode
            end = max(end, decoded) + prefill
        return end

    @property
    def efficiency(self) -> float:
        """`bound` divided by `total_s`; 1 is perfect."""
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
class _TimedGroup(Generic[T]):
    """A group, and the seconds that the producer spent on it."""

    group: T
    seconds: float


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
    """Consume every group once, in order; return the results and the timings.

    Args:
        groups: The producer: an iterable that yields each group when it is ready. For `INTERLEAVED`, it must
            not work ahead.
        consume: Prefills a group.
        mode: How producer and consumer share the time.
        waiting: Maximum number of groups that wait for the consumer (`OVERLAPPED`).
        start_s: Seconds spent before the call, added to the total.
        busy: Returns the seconds that the producer has worked so far; called before and after every group.
            None: the producer does not work ahead of its iterator, so the time for its next group is
                measured.

    Returns:
        What `consume` returned for every group, and the timings.

    Raises:
        Exception: What the producer or the consumer raised. The other is then stopped, and no thread keeps
            running.
    """
    begin = time.perf_counter()
    timed_groups: Iterable[_TimedGroup[T]] = _timed(groups, busy)
    if mode is Mode.SEQUENTIAL:
        # All groups are decoded before the first is prefilled.
        timed_groups = list(timed_groups)
    results: list[R] = []
    decode: list[float] = []
    prefill: list[float] = []
    source = _ahead(timed_groups, waiting) if mode is Mode.OVERLAPPED else iter(timed_groups)
    try:
        for item in source:
            decode.append(item.seconds)
            started = time.perf_counter()
            results.append(consume(item.group))
            prefill.append(time.perf_counter() - started)
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
    total = time.perf_counter() - begin + start_s
    return results, Timings(mode, start_s, tuple(decode), tuple(prefill), total)


def _timed(groups: Iterable[T], busy: Callable[[], float] | None) -> Iterator[_TimedGroup[T]]:
    clock = busy or time.perf_counter
    source = iter(groups)
    try:
        while True:
            before = clock()
            try:
                group = next(source)
            except StopIteration:
                return
            seconds = clock() - before
            yield _TimedGroup(group, seconds)
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _ahead(timed_groups: Iterable[_TimedGroup[T]], waiting: int) -> Iterator[_TimedGroup[T]]:
    """Yield the groups, which a thread takes from the producer, at most `waiting` groups ahead."""
    queue: Queue[_TimedGroup[T] | _Failure | None] = Queue(maxsize=waiting)
    stopped = threading.Event()

    def offer(item: _TimedGroup[T] | _Failure | None) -> None:
        while not stopped.is_set():
            try:
                # The time-out lets the loop check `stopped`: if the consumer fails, nobody takes items.
                queue.put(item, timeout=0.1)
            except Full:
                continue
            return

    def produce() -> None:
        source = iter(timed_groups)
        try:
            for item in source:
                offer(item)
                if stopped.is_set():
                    break
            offer(None)
        except BaseException as error:
            # The consumer's thread raises the error, because nobody would see it here.
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
        # The caller will close the recording, so wait until the thread no longer reads it.
        thread.join()
