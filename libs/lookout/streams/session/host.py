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
"""Most windows in a batch; the engine splits a batch that is too large for its memory."""

Job = Callable[[], Any]
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a model is loaded; sessions with equal settings share the model.

    Attributes:
        folder: Folder of the checkpoint.
        engine: One of `ENGINES`.
        device: Device of the tower and the transformers engine; vLLM always uses the device of its wheel.
            None: for both, the device of vLLM's wheel, or the CPU with the transformers engine.
        dtype: Data type of weights and KV; None: the default of the engine's device.
        budget_bytes: Limit on the KV of all sessions together; None: 1 GiB on a CPU; on a GPU, the memory
            left by weights and one pass.
        options: More arguments of the engine's `load_engine`, as sorted pairs.
    """

    folder: Path
    engine: str = "transformers"
    device: str | None = None
    dtype: str | None = None
    budget_bytes: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise SessionError(f"engine {self.engine!r} is unknown: choose one of {', '.join(ENGINES)}")
        if self.budget_bytes is not None:
            check_whole("budget_bytes", self.budget_bytes, 1, 1 << 60, SessionError)
        if unknown := [name for name, _ in self.options if name not in ENGINES[self.engine]]:
            raise SessionError(
                f"options {', '.join(unknown)} are unknown to the {self.engine} engine, which has "
                + ", ".join(ENGINES[self.engine])
            )
        if self.dtype not in (None, *DTYPES):
            raise SessionError(f"dtype {self.dtype!r} is unknown: choose one of {', '.join(DTYPES)}")
        try:
            device = self.device or engine_device(self.engine, "cpu")
            check_device(device)
            hash(self.options)
        except ModelError as error:
            raise SessionError(str(error)) from None
        except TypeError as error:
            raise SessionError(f"options must have plain values: {error}") from None
        # Set to the effective values, so that sessions share a model no matter how its device was chosen.
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
    """Deadline and cancellation of a call.

    Args:
        deadline_s: Seconds from now; None: no limit.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        if deadline_s is not None and not deadline_s >= 0:
            raise SessionError(f"deadline_s={deadline_s} must be at least 0")
        self._end = None if deadline_s is None else time.monotonic() + deadline_s
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self.cancelled = False

    def left(self) -> float:
        """Return the remaining seconds; -1 for no limit, as `threading.Lock.acquire` expects."""
        return -1 if self._end is None else max(0.0, self._end - time.monotonic())

    def lasts(self) -> bool:
        """Whether there is time left and the call is not cancelled."""
        return not self.cancelled and self.left() != 0

    def cancel(self) -> None:
        """Cancel the call: work that has not started will not start."""
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
        """Let `cancel` cancel this future from now on."""
        with self._lock:
            self._future = future
            if self.cancelled:
                future.cancel()

    def refuse_late(self, future: Future[Any]) -> None:
        """Cancel a future if its work has not begun by the deadline.

        Raises:
            DeadlineError: The work had not started.
        """
        if not future.done() and future.cancel():
            raise DeadlineError("the deadline passed before the engine was free") from None

    def await_result(self, future: Future[Any]) -> Any:
        """Return the result of a future; cancel it if its work has not begun by the deadline.

        Raises:
            DeadlineError: The work had not begun in time.
            CancelledError: The call was cancelled before its work began.
            Exception: The exception of the work.
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
    """Owns an engine, its tower and the thread that computes; waiting windows of different sessions form one
    batch.

    A question is computed alone, because the last bits of a product depend on its number of rows, and an
    answer must not depend on other callers.

    Args:
        settings: The model and its settings.
    """

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.engine = settings.load()
        self.tower: Tower = load_tower(settings.folder, device=str(settings.device), dtype=settings.dtype)
        self.layout: Layout = self.engine.layout
        self.process = os.getpid()
        """Process of the computing thread."""
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._thread: BatchingThread[WindowRequest | Job, Any] = BatchingThread(
            "engine", self._compute, choose=_batch
        )

    def take_name(self, name: str | None) -> str:
        """Reserve and return a session name: `name`, else a numbered name.

        Raises:
            SessionError: Another session has the name.
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
                f"this model was loaded in process {self.process}, but process {here} is a fork, which has "
                "no thread that computes: open a Session or Pipeline in every process"
            )

    def submit(self, work: WindowRequest | Job) -> Future[Any]:
        """Compute a window, or run a job alone, on the engine's thread."""
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
    """Return what runs next: one job, or the windows before the next job, one per stream. Nothing overtakes a
    job, because the job may free the stream of a later window."""
    if not isinstance(waiting[0], WindowRequest):
        return [0]
    streams: dict[str, int] = {}
    for place, work in enumerate(waiting):
        if not isinstance(work, WindowRequest):
            break
        streams.setdefault(work.plan.stream, place)
    return list(streams.values())[:BATCH]


class _Sign(Enum):
    """Markers before the first piece and after the last."""

    BEGUN = "begun"
    ENDED = "ended"


class SharedEngine:
    """An engine for one session: its windows queue with those of other sessions (`Engine` protocol).

    Args:
        host: Computes the windows.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self.patience = Patience()
        """Deadline of the current call."""

    @property
    def layout(self) -> Layout:
        """The prompt layout of the checkpoint."""
        return self._host.layout

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """Execute windows; see `Engine.run`."""
        futures = [self._host.submit(request) for request in requests]
        return [self.patience.await_result(future) for future in futures]

    def call(self, job: Job) -> Any:
        """Return the result of a job that runs alone on the engine's thread."""
        return self.patience.await_result(self._host.submit(job))

    def stream(self, job: Callable[[Callable[[T], object]], A], take: Callable[[T], object]) -> A:
        """Return the result of a job that runs alone on the engine's thread. Pieces that the job produces are
        passed to `take` on the caller's thread, where `take` may be slow or fail."""
        pieces: queue.SimpleQueue[T | _Sign] = queue.SimpleQueue()

        def begin() -> A:
            pieces.put(_Sign.BEGUN)
            return job(pieces.put)

        future: Future[A] = self._host.submit(begin)
        future.add_done_callback(lambda _: pieces.put(_Sign.ENDED))
        patience = self.patience
        patience.watch(future)
        left = patience.left()
        try:
            piece = pieces.get(timeout=None if left < 0 else left)
        except queue.Empty:
            patience.refuse_late(future)
            piece = pieces.get()
        try:
            while piece is not _Sign.ENDED:
                if piece is not _Sign.BEGUN:
                    take(piece)  # type: ignore[arg-type]
                piece = pieces.get()
        except BaseException:
            patience.cancel()
            while pieces.get() is not _Sign.ENDED:
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
    """A host and the number of sessions that use it; the lock is held while the host is loaded."""

    users: int = 0
    host: EngineHost | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


#: keyed by process too, because a fork inherits its parent's hosts, but not their threads
_HOSTS: Final[dict[tuple[int, HostSettings], _Shared]] = {}
_LOCK: Final = threading.Lock()


def borrow(settings: HostSettings) -> EngineHost:
    """Return the shared host for these settings; the first caller loads its model. Call `give_back` later."""
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
    """Release the host of an ended session; the last one closes it."""
    _leave((host.process, host.settings))


def _leave(key: tuple[int, HostSettings]) -> None:
    with _LOCK:
        shared = _HOSTS[key]
        shared.users -= 1
        if shared.users:
            return
        del _HOSTS[key]
    # Outside the lock, because closing waits for a running batch, and other models should not.
    if shared.host is not None:
        shared.host.close()
