"""Windows of different cameras that wait at the same time run as one batch."""

import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from lookout.engines import DeviceError, Engine, WindowAnswer, WindowRequest
from lookout.runtime import DeviceFailedError

__all__ = ["Batcher"]

_Item = tuple[WindowRequest, "Future[WindowAnswer]"]


class Batcher:
    """Owns the engine's thread. `answer` may be called from any thread; it waits for no batch to fill.

    A batch takes at most `key_limit` key windows whose KV is kept; the others wait for the next batches while
    windows that reuse KV pass them. So a takeover of many cameras does not delay the others.

    Args:
        engine: Runs the batches.
        limit: Windows of a batch.
        key_limit: Key windows of a batch.
    """

    def __init__(self, engine: Engine, limit: int, key_limit: int | None = None) -> None:
        self._engine = engine
        self._limit = limit
        self._key_limit = key_limit or limit
        self._queue: SimpleQueue[_Item | str | None] = SimpleQueue()
        self._late: list[_Item] = []
        self._closed = False
        self.batches = 0
        self.windows = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """The answer to one window, its error inside.

        Raises:
            DeviceFailedError: The device failed; it says nothing about the window.
            Exception: What the engine raised for the whole batch.
        """
        future: Future[WindowAnswer] = Future()
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._queue.put((request, future))
        try:
            return future.result()
        except DeviceError as error:
            raise DeviceFailedError(str(error)) from error

    def forget(self, stream: str) -> None:
        """Free the KV of a stream before the next batch. Returns at once."""
        self._queue.put(stream)

    def close(self) -> None:
        """Finish the running batch, refuse what waits, close the engine."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=30)
        self._engine.close()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                answers = self._engine.run([request for request, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            self.batches += 1
            self.windows += len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)
        self._refuse()

    def _next(self) -> list[_Item] | None:
        """The next batch, in the order of arrival; None at the end."""
        waiting, self._late = self._late, []
        while not waiting or not self._queue.empty():
            item = self._queue.get()
            if item is None and not waiting:
                return None
            if item is None:
                self._queue.put(None)
                break
            if isinstance(item, str):
                self._engine.close_stream(item)
            else:
                waiting.append(item)
        return self._chosen(waiting)

    def _chosen(self, waiting: list[_Item]) -> list[_Item]:
        """One window a stream and no more key windows than allowed; the others wait."""
        streams: set[str] = set()
        batch: list[_Item] = []
        keys = 0
        for item in waiting:
            request = item[0]
            key = request.keep and request.plan.parent is None
            stream = request.plan.stream
            room = len(batch) < self._limit and stream not in streams
            if room and not (key and keys >= self._key_limit):
                batch.append(item)
                keys += key
            else:
                self._late.append(item)
            streams.add(stream)
        return batch

    def _refuse(self) -> None:
        closed = RuntimeError("the engine is closed")
        for _, future in self._late:
            future.set_exception(closed)
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is not None and not isinstance(item, str):
                item[1].set_exception(closed)
