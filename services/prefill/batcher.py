"""Windows of different cameras that wait at the same time run as one batch."""

import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from lookout.engines import Engine, WindowAnswer, WindowRequest

__all__ = ["Batcher"]

_Item = tuple[WindowRequest, "Future[WindowAnswer]"]


class Batcher:
    """Owns the engine's thread. `answer` may be called from any thread; it waits for no batch to fill."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._late: list[_Item] = []
        self._closed = False
        self.batches = 0
        self.windows = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """The answer to one window, its error inside. Raises what the engine raised for a whole batch."""
        future: Future[WindowAnswer] = Future()
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._queue.put((request, future))
        return future.result()

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
        """Everything that waits, one window a stream; None at the end."""
        waiting, self._late = self._late, []
        if not waiting:
            first = self._queue.get()
            if first is None:
                return None
            waiting.append(first)
        while len(waiting) < self._limit:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is None:
                self._queue.put(None)
                break
            waiting.append(item)
        streams: set[str] = set()
        batch: list[_Item] = []
        for item in waiting:
            stream = item[0].plan.stream
            (self._late if stream in streams else batch).append(item)
            streams.add(stream)
        return batch

    def _refuse(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is not None:
                item[1].set_exception(RuntimeError("the engine is closed"))
