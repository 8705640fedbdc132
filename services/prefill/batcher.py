"""Windows of different cameras that wait at the same time run as one batch."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event

from lookout.engines import DeviceError, Engine, WindowAnswer, WindowRequest
from lookout.errors import DeviceFailedError
from lookout.worker import BatchingThread, Supervisor

After = Callable[[Sequence[WindowRequest], Sequence[WindowAnswer]], object]


class Batcher:
    """The engine on a thread of its own. `answer` may be called from any thread.

    Args:
        engine: Runs the batches; out of memory it halves them itself.
        limit: Windows of a batch.
        key_limit: Key windows of a batch whose KV is kept.
        supervisor: Told when the thread dies.
        busy: Told the seconds of each batch.
        after: Told every batch and its answers on the engine's thread, while the engine holds its KV.
        idle: Set while no batch is computed.
    """

    def __init__(
        self,
        engine: Engine,
        limit: int,
        key_limit: int | None = None,
        supervisor: Supervisor | None = None,
        busy: Callable[[float], object] | None = None,
        *,
        after: After | None = None,
        idle: Event | None = None,
    ) -> None:
        self._engine, self._after, self._idle = engine, after, idle or Event()
        self._idle.set()
        self._thread: BatchingThread[WindowRequest, WindowAnswer] = BatchingThread(
            "engine",
            self._run,
            choose=partial(choose_windows, limit=limit, key_limit=key_limit or limit),
            supervisor=supervisor,
            busy=busy,
        )

    @property
    def batches(self) -> int:
        """Batches run since the start."""
        return self._thread.batches

    @property
    def windows(self) -> int:
        """Windows in them."""
        return self._thread.requests

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """The answer to one window, its error inside.

        Raises:
            DeviceFailedError: The device failed; it says nothing about the window.
            TransientError: The service ends.
            Exception: What the engine raised for the whole batch.
        """
        try:
            return self._thread.ask(request)
        except DeviceError as error:
            raise DeviceFailedError(str(error)) from error

    def _run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        self._idle.clear()
        try:
            answers = self._engine.run(requests)
            if self._after is not None:
                self._after(requests, answers)
            return answers
        finally:
            self._idle.set()

    def forget(self, stream: str) -> None:
        """Free the KV of a stream before the next batch. Returns at once."""
        self._thread.call(partial(self._engine.close_stream, stream))

    def close(self) -> None:
        """Finish the running batch, refuse what waits, close the engine."""
        self._thread.close()
        self._engine.close()


def choose_windows(waiting: Sequence[WindowRequest], limit: int, key_limit: int) -> list[int]:
    """The windows of the next batch, in order of arrival: one of each stream.

    At most `key_limit` of them are key windows whose KV is kept; the others wait for the next batches while
    windows that reuse KV pass them. So a takeover of many cameras does not delay the others.

    Args:
        waiting: Requests in order of arrival.
        limit: Windows of a batch.
        key_limit: Key windows of a batch.

    Returns:
        Indices into `waiting`.
    """
    streams: set[str] = set()
    places: list[int] = []
    keys = 0
    for index, request in enumerate(waiting):
        key = request.keep and request.plan.parent is None
        stream = request.plan.stream
        room = len(places) < limit and stream not in streams
        if room and not (key and keys >= key_limit):
            places.append(index)
            keys += key
        # Also where it was not chosen: a later window of the stream must not pass this one.
        streams.add(stream)
    return places
