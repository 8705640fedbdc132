"""Computes the requests of several waiting callers as one batch, on one thread."""

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
    """Starts threads (implemented by `lookout.runtime.worker.Supervisor`, which also watches them)."""

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Run `target` on a daemon thread called `name`."""
        ...


class _Unwatched:
    """Starts threads without a supervisor: if a thread dies, only its waiting callers get an error."""

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


@dataclass(slots=True, eq=False)
class _Waiting(Generic[R, A]):
    request: R
    answer: Future[A] = field(default_factory=Future)


class BatchingThread(Generic[R, A]):
    """Computes batches on a separate thread.

    `ask` may be called from any thread. No request waits for a batch to fill.

    If `compute` raises an exception, every caller of its batch gets it. If the thread ends for any other
    reason, that is a fault of the service: the supervisor ends the process, and waiting callers get a
    TransientError.

    Args:
        name: The thread's name.
        compute: Returns the answers to a batch, in the order of its requests.
        choose: Returns the indices of the waiting requests (in order of arrival) that form the next batch, at
            least one; the other requests keep waiting. None: take all.
        halve: Whether a batch that fails is split and each half computed again. A half may fit in the
            device's memory if the whole did not, and a faulty request then fails alone.
        supervisor: Starts the thread and is told when it dies. None: the thread is not watched.
        busy: Called with the seconds of each computation.
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
        """Requests in those batches."""
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
        """Return the answer to one request; blocks until it is computed.

        Raises:
            TransientError: The thread has ended.
            Exception: What `compute` raised.
        """
        return self.submit(request).result()

    def submit(self, request: R) -> Future[A]:
        """Queue one request and return a future for its answer. The future can be cancelled until a batch
        takes the request."""
        waiting: _Waiting[R, A] = _Waiting(request)
        # Queue the request before checking, so that either this call or the ending thread rejects it.
        self._queue.put(waiting)
        if self._ended.is_set():
            self._refuse_queued()  # the thread may already have emptied the queue for the last time
        return waiting.answer

    def call(self, action: Callable[[], object]) -> None:
        """Run `action` on the thread before its next batch. Returns at once."""
        self._queue.put(action)

    def waiting(self) -> int:
        """Return the number of requests and calls that the thread has not yet taken from its queue."""
        return self._queue.qsize()

    def close(self) -> None:
        """Finish the running batch and reject the waiting requests."""
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
                    raise ValueError(f"{self.name}: `choose` took none of {len(self._waiting)} requests")
                # From here on, the requests of the batch cannot be cancelled.
                batch = [job for job in batch if job.answer.set_running_or_notify_cancel()]
                if batch:
                    self._answer(batch)
        finally:
            self._ended.set()
            for job in (*batch, *self._waiting):
                self._refuse(job)
            self._refuse_queued()

    def _gather(self) -> bool:
        """Take all waiting requests; if there are none, wait for the first. Return False if the thread must
        end."""
        # All requests that arrive while a batch is computed form the next batch. So batches grow with load,
        # and no request waits for a batch to fill.
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
        with suppress(InvalidStateError):  # the request was already answered or cancelled
            waiting.answer.set_exception(TransientError(f"the thread {self.name!r} is closed"))


_OPEN: Final[WeakSet[BatchingThread[Any, Any]]] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all threads before the interpreter exits.

    Otherwise Python ends a daemon thread when that thread next needs the interpreter. If the thread is then
    in torch's C++ code, `std::terminate` is called, and the process dies of SIGABRT. This would happen to
    every program that was interrupted or did not close its model.
    """
    for thread in list(_OPEN):
        thread.close()
