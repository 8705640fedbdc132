"""Requests of several lanes that wait at the same time are computed as one batch, on one thread."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from lookout.errors import TransientError

R = TypeVar("R")
A = TypeVar("A")

CLOSE_S = 30.0


class Starter(Protocol):
    """What starts threads (`lookout.runtime.worker.Supervisor`, which also watches them)."""

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Run `target` on a daemon thread called `name`."""
        ...


class _Unwatched:
    """Starts threads whose death nobody is told of; whoever waits for them gets an error."""

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


@dataclass(slots=True, eq=False)
class _Waiting(Generic[R, A]):
    request: R
    answer: Future[A] = field(default_factory=Future)


class BatchingThread(Generic[R, A]):
    """Owns the thread that computes. `ask` may be called from any thread; nothing waits for a batch to fill.

    An exception of `compute` is the answer to the requests of its batch. Anything else that ends the thread
    is a fault of the service: the supervisor ends the process, and callers that wait get a TransientError.

    Args:
        name: Of the thread.
        compute: The answers of a batch, in its order.
        choose: Indices of the waiting requests (in order of arrival) that make the next batch, at least one;
            the others wait. None: all.
        halve: Whether a batch whose computation fails runs again as two halves: what does not fit the
            device's memory may fit then, and one request's fault stays its own.
        supervisor: Told when the thread dies. None: nobody is.
        busy: Told the seconds of each computation.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[[list[R]], Sequence[A]],
        *,
        choose: Callable[[Sequence[R]], Sequence[int]] | None = None,
        halve: bool = False,
        supervisor: Starter | None = None,
        busy: Callable[[float], object] | None = None,
    ) -> None:
        self.name = name
        self.batches = 0
        """Batches computed since the start."""
        self.requests = 0
        """Requests in them."""
        self._compute = compute
        self._choose = choose or (lambda requests: range(len(requests)))
        self._halve = halve
        self._busy = busy or (lambda _: None)
        self._queue: SimpleQueue[_Waiting[R, A] | Callable[[], object] | None] = SimpleQueue()
        self._waiting: list[_Waiting[R, A]] = []
        self._ended = threading.Event()
        self._thread = (supervisor or _Unwatched()).start(name, self._run)
        _OPEN.add(self)

    def ask(self, request: R) -> A:
        """The answer to one request.

        Raises:
            TransientError: The thread has ended; so does the process.
            Exception: What `compute` raised.
        """
        return self.submit(request).result()

    def submit(self, request: R) -> Future[A]:
        """The answer to one request, once it is there. A request that no batch has taken can be cancelled."""
        waiting: _Waiting[R, A] = _Waiting(request)
        # Put first, look second: where the thread ends in between, one of the two sides refuses the request.
        self._queue.put(waiting)
        if self._ended.is_set():
            self._refuse_queued()  # the thread may have looked for the last time already
        return waiting.answer

    def call(self, action: Callable[[], object]) -> None:
        """Run `action` on the thread before its next batch. Returns at once."""
        self._queue.put(action)

    def waiting(self) -> int:
        """Requests and calls that the thread has not looked at yet."""
        return self._queue.qsize()

    def close(self) -> None:
        """Finish the running batch and refuse what waits."""
        _OPEN.discard(self)
        self._queue.put(None)
        self._thread.join(timeout=CLOSE_S)

    # -- on the thread

    def _run(self) -> None:
        batch: list[_Waiting[R, A]] = []
        try:
            while self._gather():
                self._waiting = [job for job in self._waiting if not job.answer.cancelled()]
                if not self._waiting:
                    continue
                indices = set(self._choose([job.request for job in self._waiting]))
                batch = [job for index, job in enumerate(self._waiting) if index in indices]
                self._waiting = [job for index, job in enumerate(self._waiting) if index not in indices]
                if not batch:
                    raise ValueError(f"{self.name}: {len(self._waiting)} requests wait and none was chosen")
                # From here on a request of the batch cannot be cancelled.
                batch = [job for job in batch if job.answer.set_running_or_notify_cancel()]
                if batch:
                    self._answer(batch)
        finally:
            self._ended.set()
            for job in (*batch, *self._waiting):
                self._refuse(job)
            self._refuse_queued()

    def _gather(self) -> bool:
        """Take everything that waits; wait where that is nothing. False at the end."""
        # What arrived while a batch was computed is the next one: batches grow with load, and nothing waits
        # for them.
        while not self._waiting or not self._queue.empty():
            job = self._queue.get()
            if job is None:
                return False
            if isinstance(job, _Waiting):
                self._waiting.append(job)
            else:
                job()
        return True

    def _answer(self, batch: list[_Waiting[R, A]]) -> None:
        try:
            answers = self._timed([job.request for job in batch])
        except Exception as error:
            if self._halve and len(batch) > 1:
                middle = len(batch) // 2
                self._answer(batch[:middle])
                self._answer(batch[middle:])
                return
            for job in batch:
                job.answer.set_exception(error)
            return
        self.batches += 1
        self.requests += len(batch)
        for job, answer in zip(batch, answers, strict=True):
            job.answer.set_result(answer)

    def _timed(self, requests: list[R]) -> Sequence[A]:
        begin = time.perf_counter()
        try:
            return self._compute(requests)
        finally:
            self._busy(time.perf_counter() - begin)

    def _refuse_queued(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                return
            if isinstance(job, _Waiting):
                self._refuse(job)

    def _refuse(self, waiting: _Waiting[R, A]) -> None:
        with suppress(InvalidStateError):  # answered, or cancelled
            waiting.answer.set_exception(TransientError(f"the thread {self.name!r} is closed"))


_OPEN: Final[WeakSet[BatchingThread[Any, Any]]] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Python ends a daemon thread where it next wants the interpreter. Inside of torch's C++ that is
    `std::terminate`: a program that was interrupted, or did not close its model, would die of SIGABRT."""
    for thread in list(_OPEN):
        thread.close()
