"""Batches the waiting windows of different cameras for the engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from lookout.errors import DeviceFailedError
from lookout.models.engines import DeviceError, Engine, WindowAnswer, WindowRequest
from lookout.runtime.worker import BatchingThread, Supervisor
from lookout.services.prefill.loading import camera_of
from lookout.services.prefill.shares import DeviceShares, rows_of

#: weight of the newest batch in the moving average of the time per row
_NEWEST = 0.1
After = Callable[[Sequence[WindowRequest], Sequence[WindowAnswer]], object]


class KeyRoom:
    """Limits how many key windows a batch may contain, by their cost. For one thread.

    A key window computes several times as many rows as a window that reuses KV. When a pod is lost, each of
    its cameras needs a key window. If all of them were in one batch, they would delay the cameras that this
    instance already has; with only one per batch, the last camera would wait very long.

    Args:
        limit: Maximum number of key windows per batch; None: no limit.
        rows: Maximum number of rows of a batch's key windows, which must fit into one forward pass; None: no
            limit.
        delay_s: Maximum seconds by which key windows may delay other waiting windows; None: no limit.
    """

    def __init__(
        self, limit: int | None = None, rows: int | None = None, delay_s: float | None = None
    ) -> None:
        self._limit, self._rows, self._delay_s = limit, rows, delay_s
        self._row_s: float | None = None

    def fits(self, count: int, rows: int, more: int, contended: bool) -> bool:
        """Return whether one more key window may join a batch. The first one always may.

        Args:
            count: Number of key windows in the batch.
            rows: Number of their rows.
            more: Number of rows of the next key window.
            contended: Whether windows that reuse KV are waiting too.
        """
        if count == 0:
            return True
        if self._limit is not None and count >= self._limit:
            return False
        if self._rows is not None and rows + more > self._rows:
            return False
        if self._delay_s is None or not contended:
            return True
        # Before the first batch, the time per row is unknown, so allow only one key window.
        return self._row_s is not None and (rows + more) * self._row_s <= self._delay_s

    def measure(self, rows: int, seconds: float) -> None:
        """Record a batch's rows and seconds."""
        if rows:
            newest = seconds / rows
            before = newest if self._row_s is None else self._row_s
            self._row_s = before + _NEWEST * (newest - before)


class Batcher:
    """Runs the engine on a separate thread. `answer` may be called from any thread.

    Args:
        engine: Runs the batches; splits a batch that does not fit in memory.
        limit: Maximum number of windows per batch.
        keys: Limits the key windows per batch; None: no limit.
        supervisor: Told when the thread dies.
        busy: Called with the seconds that each batch took.
        after: Called on the engine's thread with each batch and its answers, while the engine still holds the
            batch's KV.
        idle: An event that is set while no batch is computed.
        tenants: Orders the windows by tenant and charges tenants for them; None: order of arrival.
    """

    def __init__(
        self,
        engine: Engine,
        limit: int,
        keys: KeyRoom | None = None,
        supervisor: Supervisor | None = None,
        busy: Callable[[float], object] | None = None,
        *,
        after: After | None = None,
        idle: Event | None = None,
        tenants: DeviceShares | None = None,
    ) -> None:
        self._engine, self._after, self._idle = engine, after, idle or Event()
        self._tenants, self._limit, self._keys = tenants, limit, keys or KeyRoom()
        self._idle.set()
        self._thread: BatchingThread[WindowRequest, WindowAnswer] = BatchingThread(
            "engine",
            self._run,
            choose=self._choose,
            supervisor=supervisor,
            busy=busy,
        )

    @property
    def batches(self) -> int:
        """Number of batches run since the start."""
        return self._thread.batches

    @property
    def windows(self) -> int:
        """Number of windows in the batches run since the start."""
        return self._thread.requests

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """Compute a window; return its answer, which may contain an error.

        Raises:
            DeviceFailedError: The device failed; the window is not to blame.
            TransientError: The service is stopping.
            Exception: The engine raised it for the whole batch.
        """
        try:
            return self._thread.ask(request)
        except DeviceError as error:
            raise DeviceFailedError(str(error)) from error

    def _choose(self, waiting: Sequence[WindowRequest]) -> list[int]:
        order = None if self._tenants is None else self._tenants.order(waiting)
        return choose_windows(waiting, self._limit, self._keys, order)

    def _run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        self._idle.clear()
        begun = time.perf_counter()
        try:
            answers = self._engine.run(requests)
            seconds = time.perf_counter() - begun
            self._keys.measure(sum(request.plan.computed for request in requests), seconds)
            answers = _timed(requests, answers, seconds)
            if self._tenants is not None:
                self._tenants.charge(requests, seconds)
            if self._after is not None:
                self._after(requests, answers)
            return answers
        finally:
            self._idle.set()

    def forget(self, stream: str) -> None:
        """Free a stream's KV before the next batch. Returns at once."""
        self._thread.call(partial(self._engine.close_stream, stream))

    def forget_camera(self, camera: str) -> None:
        """Free the KV of all streams of a camera before the next batch. Returns at once."""

        def close() -> None:
            for memory in self._engine.memory():
                if camera_of(memory.stream) == camera:
                    self._engine.close_stream(memory.stream)

        self._thread.call(close)

    def close(self) -> None:
        """Finish the running batch, reject the waiting windows, and close the engine."""
        self._thread.close()
        self._engine.close()


def _timed(
    requests: Sequence[WindowRequest], answers: Sequence[WindowAnswer], seconds: float
) -> list[WindowAnswer]:
    """Return a batch's answers, each with its share of the batch's seconds."""
    rows = [rows_of(request) for request in requests]
    total = sum(rows) or 1
    return [
        replace(answer, cost=replace(answer.cost, seconds=seconds * count / total))
        for answer, count in zip(answers, rows, strict=True)
    ]


def choose_windows(
    waiting: Sequence[WindowRequest],
    limit: int,
    keys: KeyRoom,
    order: Sequence[int] | None = None,
) -> list[int]:
    """Choose the windows for the next batch, at most one per stream.

    `keys` limits the key windows whose KV is kept for later windows. Key windows beyond the limit wait for
    later batches, and windows that reuse KV overtake them, so that taking over many cameras does not delay
    other cameras. Key windows keep their order.

    Args:
        waiting: Requests in order of arrival.
        limit: Maximum number of windows per batch.
        keys: Limits how many key windows the batch may contain.
        order: Indices into `waiting` in the order in which to consider the requests; None: order of arrival.

    Returns:
        Indices into `waiting`.
    """
    streams: set[str] = set()
    places: list[int] = []
    count, rows = 0, 0
    contended = any(not _is_key(request) for request in waiting)
    for index in range(len(waiting)) if order is None else order:
        request = waiting[index]
        key, stream = _is_key(request), request.plan.stream
        fits = not key or keys.fits(count, rows, request.plan.computed, contended)
        if len(places) < limit and stream not in streams and fits:
            places.append(index)
            count, rows = count + key, rows + key * request.plan.computed
        # Added even if the window was not chosen, so that no later window of its stream overtakes it.
        streams.add(stream)
    return places


def _is_key(request: WindowRequest) -> bool:
    return request.keep and request.plan.parent is None
