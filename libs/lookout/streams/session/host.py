"""A loaded model on its own thread, shared by all sessions of the same model and settings."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from lookout.models import ModelError
from lookout.models.batching import BatchingThread
from lookout.models.device import check_device, default_dtype, engine_device
from lookout.models.engines import (
    AskingEngine,
    StreamMemory,
    WindowAnswer,
    WindowRequest,
    load_engine as load_transformers,
)
from lookout.models.engines.budget import KvBudget
from lookout.models.engines.vllm import load_engine as load_vllm
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.models.windows import Layout
from lookout.streams.session.errors import DeadlineError, SessionError
from lookout.values import check_whole

#: engines, with the options that their `load_engine` takes in addition to those of a session
ENGINES: Final = {
    "transformers": ("spill_dir", "rows_per_pass"),
    "vllm": ("max_rows", "max_batched_rows", "block_size", "kv_cache_bytes", "tensor_parallel", "eager"),
}
DTYPES: Final = ("float32", "bfloat16", "float16")
BATCH: Final = 64
"""Maximum number of windows in a batch. The engine splits a batch that is too large for its memory."""

Job = Callable[[], Any]
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a model is loaded; sessions with equal settings share the model.

    Attributes:
        folder: Folder of the checkpoint.
        engine: One of `ENGINES`.
        device: Device of the tower and of the transformers engine. vLLM always uses the device for which its
            wheel was built. None: with vLLM, that device for the tower too; with transformers, the CPU.
        dtype: Data type of weights and KV; None: the default of the engine's device.
        budget_bytes: Limit on the KV of all sessions together. None: 1 GiB on a CPU; on a GPU, the memory
            that weights and one pass leave free.
        options: Further arguments of the engine's `load_engine`, as sorted (name, value) pairs.
    """

    folder: Path
    engine: str = "transformers"
    device: str | None = None
    dtype: str | None = None
    budget_bytes: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise SessionError(f"engine={self.engine!r} is unknown: choose one of {', '.join(ENGINES)}")
        if self.budget_bytes is not None:
            check_whole("budget_bytes", self.budget_bytes, 1, 1 << 60, SessionError)
        if unknown := [name for name, _ in self.options if name not in ENGINES[self.engine]]:
            raise SessionError(
                f"options: the {self.engine} engine has no option {', '.join(unknown)}; choose from "
                + ", ".join(ENGINES[self.engine])
            )
        if self.dtype not in (None, *DTYPES):
            raise SessionError(f"dtype={self.dtype!r} is unknown: choose one of {', '.join(DTYPES)}")
        try:
            device = self.device or engine_device(self.engine, "cpu")
            check_device(device)
            hash(self.options)
        except ModelError as error:
            raise SessionError(str(error)) from None
        except TypeError as error:
            raise SessionError(f"options must have values that can be hashed, not lists: {error}") from None
        # None is replaced by the default, so that a session that names the default shares the same model.
        object.__setattr__(self, "device", device)
        if self.dtype is None:
            object.__setattr__(self, "dtype", default_dtype(engine_device(self.engine, device)))

    def load(self) -> AskingEngine:
        """Load the engine."""
        options: Mapping[str, Any] = {"budget_bytes": self.budget_bytes, **dict(self.options)}
        if self.engine == "vllm":
            return load_vllm(self.folder, dtype=self.dtype, **options)
        return load_transformers(self.folder, str(self.device), self.dtype, **options)


class Patience:
    """The deadline of a call, and whether the call was cancelled.

    Args:
        deadline_s: Seconds from now until the deadline; None: no deadline.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        if deadline_s is not None and not deadline_s >= 0:
            raise SessionError(f"deadline_s={deadline_s}: give at least 0 seconds")
        self._end = None if deadline_s is None else time.monotonic() + deadline_s
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self.cancelled = False

    def left(self) -> float:
        """Return the seconds until the deadline; -1 if there is none, as `threading.Lock.acquire` expects."""
        return -1 if self._end is None else max(0.0, self._end - time.monotonic())

    def lasts(self) -> bool:
        """Whether there is time left and the call is not cancelled."""
        return not self.cancelled and self.left() != 0

    def cancel(self) -> None:
        """Cancel the call, so that work that has not started never starts."""
        with self._lock:
            self.cancelled = True
            if self._future is not None:
                self._future.cancel()

    def check(self) -> None:
        """Check that the call may start.

        Raises:
            DeadlineError: The deadline has passed.
            CancelledError: The call was cancelled.
        """
        if self.cancelled:
            raise CancelledError
        if self._end is not None and time.monotonic() > self._end:
            raise DeadlineError("the deadline passed before the engine was free")

    def watch(self, future: Future[Any]) -> None:
        """Make `cancel` also cancel this future."""
        with self._lock:
            self._future = future
            if self.cancelled:
                future.cancel()

    def refuse_late(self, future: Future[Any]) -> None:
        """Cancel a future whose work has not started. Call this at the deadline.

        Raises:
            DeadlineError: The work had not started.
        """
        if not future.done() and future.cancel():
            raise DeadlineError("the deadline passed before the engine was free") from None

    def await_result(self, future: Future[Any]) -> Any:
        """Return the result of a future. Cancel the future if its work has not started by the deadline.

        Raises:
            DeadlineError: The work had not started by the deadline.
            CancelledError: The call was cancelled before its work started.
            Exception: The exception that the work raised.
        """
        self.watch(future)
        left = self.left()
        try:
            return future.result(None if left < 0 else left)
        except TimeoutError:
            # Wait for work that has started, because an engine cannot stop in the middle of a window.
            self.refuse_late(future)
            return future.result()


class EngineHost:
    """Owns an engine, its tower and the thread on which they compute.

    Windows of different sessions that wait at the same time are computed as one batch. A question is computed
    alone, because the last bits of a matrix product depend on the number of rows, and an answer must not
    depend on other callers.

    Args:
        settings: The model and its settings.
    """

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.engine = settings.load()
        self.tower: Tower = load_tower(settings.folder, device=str(settings.device), dtype=settings.dtype)
        self.layout: Layout = self.engine.layout
        self.process = os.getpid()
        """Id of the process that has the computing thread."""
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._thread: BatchingThread[WindowRequest | Job, Any] = BatchingThread(
            "engine", self._compute, choose=_batch
        )

    def take_name(self, name: str | None) -> str:
        """Reserve a session name and return it.

        Args:
            name: The name; None: "session-" and a number.

        Raises:
            SessionError: Another open session has the name.
        """
        with self._lock:
            number = len(self._names) + 1
            while name is None and f"session-{number}" in self._names:
                number += 1
            chosen = name if name is not None else f"session-{number}"
            if chosen in self._names:
                raise SessionError(f"a session called {chosen!r} is open: give another name")
            self._names.add(chosen)
            return chosen

    def give_name(self, name: str) -> None:
        """Release the name of a session that has ended."""
        with self._lock:
            self._names.discard(name)

    def check_process(self) -> None:
        """Reject work in a forked process: it has no computing thread, so the work would wait forever.

        Raises:
            SessionError: This process is not the one that loaded the model.
        """
        if (here := os.getpid()) != self.process:
            raise SessionError(
                f"this model was loaded in process {self.process}, but process {here} is a fork of it and "
                "has no thread that computes: open a Session or Pipeline in every process"
            )

    def submit(self, work: WindowRequest | Job) -> Future[Any]:
        """Queue a window or a job for the engine's thread; return the future result. A job runs alone."""
        return self._thread.submit(work)

    def close(self) -> None:
        """Finish running work, reject waiting work, free the model."""
        self._thread.close()
        self.engine.close()

    def _compute(self, batch: Sequence[WindowRequest | Job]) -> Sequence[Any]:
        if len(batch) == 1 and not isinstance(batch[0], WindowRequest):
            return [batch[0]()]
        return self.engine.run([work for work in batch if isinstance(work, WindowRequest)])


def _batch(waiting: Sequence[WindowRequest | Job]) -> list[int]:
    """Return the indices of the waiting work that runs next: one job, or the first window of each stream
    before the next job. No window overtakes a job, because the job may free the window's stream."""
    if not isinstance(waiting[0], WindowRequest):
        return [0]
    streams: dict[str, int] = {}
    for index, work in enumerate(waiting):
        if not isinstance(work, WindowRequest):
            break
        streams.setdefault(work.plan.stream, index)
    return list(streams.values())[:BATCH]


class _Marker(Enum):
    """Markers in a queue of pieces: before the first piece, and after the last."""

    BEGUN = "begun"
    ENDED = "ended"


class SharedEngine:
    """An `Engine` for one session, whose windows wait in one queue with the windows of other sessions.

    Args:
        host: Computes the windows.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self.patience = Patience()
        """Deadline and cancellation of the session's current call."""

    @property
    def layout(self) -> Layout:
        """The prompt layout of the checkpoint."""
        return self._host.layout

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """See `Engine.run`. Raises DeadlineError or CancelledError if a window did not start in time."""
        futures = [self._host.submit(request) for request in requests]
        return [self.patience.await_result(future) for future in futures]

    def call(self, job: Job) -> Any:
        """Return the result of a job that runs alone on the engine's thread."""
        return self.patience.await_result(self._host.submit(job))

    def stream(self, job: Callable[[Callable[[T], object]], A], take: Callable[[T], object]) -> A:
        """Run a job alone on the engine's thread and return its result.

        Args:
            job: Called with a function that accepts the pieces that the job produces.
            take: Called with every piece on the caller's thread, so that it may be slow or fail. If it fails,
                the job is cancelled.
        """
        pieces: queue.SimpleQueue[T | _Marker] = queue.SimpleQueue()

        def begin() -> A:
            pieces.put(_Marker.BEGUN)
            return job(pieces.put)

        future: Future[A] = self._host.submit(begin)
        future.add_done_callback(lambda _: pieces.put(_Marker.ENDED))
        patience = self.patience
        patience.watch(future)
        left = patience.left()
        try:
            piece = pieces.get(timeout=None if left < 0 else left)
        except queue.Empty:
            patience.refuse_late(future)
            piece = pieces.get()
        try:
            while piece is not _Marker.ENDED:
                if piece is not _Marker.BEGUN:
                    take(piece)  # type: ignore[arg-type]
                piece = pieces.get()
        except BaseException:
            patience.cancel()
            while pieces.get() is not _Marker.ENDED:
                pass
            raise
        return future.result()

    @property
    def kv_budget(self) -> KvBudget:
        """See `Engine.kv_budget`."""
        return self._host.engine.kv_budget

    def held(self, stream: str) -> str | None:
        """See `Engine.held`."""
        digest: str | None = self.call(partial(self._host.engine.held, stream))
        return digest

    def close_stream(self, stream: str) -> None:
        """See `Engine.close_stream`; returns at once."""
        self._host.submit(partial(self._host.engine.close_stream, stream))

    def memory(self) -> list[StreamMemory]:
        """See `Engine.memory`."""
        memory: list[StreamMemory] = self.call(self._host.engine.memory)
        return memory

    def close(self) -> None:
        """Do nothing: the host closes the engine."""


@dataclass(slots=True, eq=False)
class _Shared:
    """A host and the number of sessions that use it. `lock` is held while the host is loaded."""

    users: int = 0
    host: EngineHost | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


#: by process id and settings, because a fork inherits its parent's hosts but not their threads
_HOSTS: Final[dict[tuple[int, HostSettings], _Shared]] = {}
_LOCK: Final = threading.Lock()


def borrow(settings: HostSettings) -> EngineHost:
    """Return the shared host for these settings. The first caller loads the model. Every caller must call
    `give_back` in the end."""
    key = os.getpid(), settings
    with _LOCK:
        shared = _HOSTS.setdefault(key, _Shared())
        shared.users += 1
    try:
        with shared.lock:
            if shared.host is None:
                shared.host = EngineHost(settings)
            return shared.host
    except BaseException:
        _leave(key)
        raise


def give_back(host: EngineHost) -> None:
    """Release the host of a session that has ended. The last session closes the host."""
    _leave((host.process, host.settings))


def _leave(key: tuple[int, HostSettings]) -> None:
    with _LOCK:
        shared = _HOSTS[key]
        shared.users -= 1
        if shared.users:
            return
        del _HOSTS[key]
    # Outside the lock: closing waits for a running batch, and sessions of other models must not wait for it.
    if shared.host is not None:
        shared.host.close()
