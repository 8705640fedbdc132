"""Writes the born KV of committed windows into chapters, on threads that do not delay windows."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lookout.models.engines import EngineError, WindowAnswer, WindowRequest
from lookout.models.engines.born import KeepsRows, born_block, prefix_of
from lookout.models.windows import WindowPlan
from lookout.past.erasures import Fence
from lookout.past.memory import BornBlock, HistoryError, Prefix
from lookout.past.memory.chapters import Born, ChapterFolder
from lookout.runtime.worker import Supervisor

_log = structlog.get_logger(__name__)
_ROUND_S = 1.0


class Captures:
    """Holds copies of the born KV of windows that were just computed, until their handler takes them.
    Thread-safe.

    The KV is copied on the engine's thread right after the batch, because the stream's next window overwrites
    it and another camera's window may evict it.

    Args:
        engine: The engine that computes windows.
        step_us: Microseconds of stream time between two samples.
    """

    def __init__(self, engine: KeepsRows, step_us: int) -> None:
        self._engine, self._step_us = engine, step_us
        self._lock = threading.Lock()
        self._born: dict[str, tuple[str, BornBlock, Prefix]] = {}
        self.lost = 0
        """Number of windows whose KV could not be copied."""

    def after(self, requests: Sequence[WindowRequest], answers: Sequence[WindowAnswer]) -> None:
        """Copy the born KV of each window's newest block. Called by the engine's thread after a batch."""
        for request, answer in zip(requests, answers, strict=True):
            if not request.keep or answer.error is not None or not request.blocks:
                continue
            plan, block = request.plan, request.blocks[-1]
            try:
                # The KV of the other blocks was copied with earlier windows.
                born = born_block(self._engine, plan, block, frame_us=self._step_us)
                prefix = prefix_of(self._engine, plan)
            except (EngineError, RuntimeError, MemoryError) as error:
                self.lost += 1
                _log.warning("a window's KV could not be copied", stream=plan.stream, error=str(error))
                continue
            with self._lock:
                self._born[plan.stream] = (plan.digest, born, prefix)

    def take(self, plan: WindowPlan) -> tuple[BornBlock, Prefix] | None:
        """Take the copy of a window's newest block; None if there is none or a later window has replaced
        it.
        """
        with self._lock:
            digest, born, prefix = self._born.pop(plan.stream, ("", None, None))
        if born is None or prefix is None or digest != plan.digest:
            return None
        return born, prefix


@dataclass(frozen=True, slots=True)
class _Leave:
    """A request to seal a camera's chapter, because the camera now belongs to another worker."""

    camera: str


@dataclass(frozen=True, slots=True)
class _Erase:
    """A request to erase a range of a camera's wall time; `done` receives the number of erased frames."""

    camera: str
    begin_us: int
    end_us: int
    done: Future[int]


_Item = Born | _Leave | _Erase


class ChapterLanes:
    """Writes blocks into chapters on its own threads. `take`, `enter` and `leave` return at once.

    Waiting blocks take at most `queue_bytes`. A block beyond this limit is not written, so memory does not
    cover its time.

    Args:
        captures: Holds the KV of computed windows.
        folder: The folder of chapters.
        lanes: Number of writing threads; a camera always uses the same thread.
        queue_bytes: Maximum bytes of waiting blocks.
        idle_s: Seconds without a block after which a camera's chapter is sealed.
        fence: The erasures in force; blocks of erased times are not written.
        supervisor: Told when a thread dies.
    """

    def __init__(
        self,
        captures: Captures,
        folder: ChapterFolder,
        *,
        lanes: int = 1,
        queue_bytes: int = 256 << 20,
        idle_s: float = 120.0,
        fence: Fence | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.folder = folder
        self._fence = fence or Fence()
        self.captures, self._limit, self._idle_s = captures, queue_bytes, idle_s
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = threading.Event()
        self.entered = self.left_out = self.failed = 0
        self.write_s = 0.0
        """CPU seconds spent on writing."""
        self._queues: list[SimpleQueue[_Item]] = [SimpleQueue() for _ in range(lanes)]
        start = (supervisor or Supervisor()).start
        self._threads = [
            start(f"chapters-{number}", lambda queue=queue: self._write(queue))  # type: ignore[misc]
            for number, queue in enumerate(self._queues)
        ]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the blocks that are waiting to be written."""
        return self._waiting

    @property
    def lost(self) -> int:
        """Number of blocks that were not written although their windows were decided."""
        return self.captures.lost + self.left_out + self.failed

    def take(self, plan: WindowPlan, camera: str, epoch: int, origin_us: int) -> Born | None:
        """Take the born KV of a window that was just answered; None if it is not available."""
        captured = self.captures.take(plan)
        return None if captured is None else Born(camera, epoch, *captured, origin_us)

    def enter(self, born: Born) -> None:
        """Queue a block for writing, after its window was committed."""
        with self._lock:
            full = self._waiting + born.bytes > self._limit
            if full:
                self.left_out += 1
            else:
                self._waiting += born.bytes
        if full:
            _log.warning(
                "a block is not remembered: too many are waiting", camera=born.camera, block=born.block.index
            )
        else:
            self._queue(born.camera).put(born)

    def leave(self, camera: str) -> None:
        """Seal a camera's chapter after its waiting blocks."""
        self._queue(camera).put(_Leave(camera))

    def erase(self, camera: str, begin_us: int, end_us: int, patience_s: float = 300.0) -> int:
        """Erase a range of a camera's wall time from its chapters, after its waiting blocks.

        Returns:
            The number of erased frames.

        Raises:
            HistoryError: The chapter could not be changed, or the writing thread did not reach the request in
                time; retry.
        """
        item = _Erase(camera, begin_us, end_us, Future())
        self._queue(camera).put(item)
        try:
            return item.done.result(patience_s)
        except TimeoutError as error:
            raise HistoryError(
                f"camera {camera}: the erasure is still waiting for the thread that writes chapters"
            ) from error

    def close(self, patience_s: float = 20.0) -> None:
        """Write waiting blocks for at most `patience_s` seconds, then seal every chapter."""
        self._closed.set()
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.folder.close()

    def _queue(self, camera: str) -> SimpleQueue[_Item]:
        return self._queues[zlib.crc32(camera.encode()) % len(self._queues)]

    def _write(self, queue: SimpleQueue[_Item]) -> None:
        newest: dict[str, float] = {}
        look_at = time.monotonic() + _ROUND_S
        while True:
            # Checked even while blocks keep arriving, because chapters of silent cameras must be sealed.
            if time.monotonic() >= look_at:
                self._seal_idle(newest)
                look_at = time.monotonic() + _ROUND_S
            try:
                item = queue.get(timeout=_ROUND_S)
            except Empty:
                if self._closed.is_set():
                    return
                continue
            # CPU time, because wall time would include the work of other threads on the same cores.
            begun = time.thread_time()
            if isinstance(item, _Leave):
                newest.pop(item.camera, None)
                self._seal(item.camera)
            elif isinstance(item, _Erase):
                self._erase(item)
            else:
                newest[item.camera] = time.monotonic()
                self._add(item)
            self.write_s += time.thread_time() - begun

    def _erase(self, item: _Erase) -> None:
        try:
            item.done.set_result(self.folder.erase(item.camera, item.begin_us, item.end_us))
        except (HistoryError, RuntimeError, MemoryError, OSError) as error:
            item.done.set_exception(HistoryError(str(error)))

    def _add(self, born: Born) -> None:
        try:
            times = born.block.times_us
            if len(times) and self._fence.hides(
                born.camera, int(times[0]) + born.origin_us, int(times[-1]) + born.origin_us + 1
            ):
                return
            self.entered += self.folder.add(born)
        except (HistoryError, RuntimeError, MemoryError, OSError) as error:
            # The chapter is unchanged, so later blocks may succeed.
            self.failed += 1
            _log.warning("a block is not remembered", camera=born.camera, error=str(error))
        finally:
            with self._lock:
                self._waiting -= born.bytes

    def _seal_idle(self, newest: dict[str, float]) -> None:
        oldest = time.monotonic() - self._idle_s
        for camera in [camera for camera, when in newest.items() if when < oldest]:
            del newest[camera]
            self._seal(camera)
        self.folder.expire()

    def _seal(self, camera: str) -> None:
        try:
            self.folder.seal(camera)
        except (HistoryError, RuntimeError, MemoryError, OSError) as error:
            _log.warning("a chapter could not be sealed", camera=camera, error=str(error))


def memory_numbers(lanes: ChapterLanes, upload_failures: int = 0) -> Iterator[Metric]:
    """Yield the metrics of the blocks and chapters, and of the cost of writing them."""
    yield CounterMetricFamily("lookout_memory_blocks", "blocks added to chapters", value=lanes.entered)
    yield CounterMetricFamily(
        "lookout_memory_lost_blocks",
        "blocks that were not written to chapters although their windows were decided",
        value=lanes.lost,
    )
    yield CounterMetricFamily(
        "lookout_memory_write_seconds", "CPU seconds spent writing chapters", value=lanes.write_s
    )
    yield CounterMetricFamily(
        "lookout_memory_upload_failures",
        "failed uploads of chapters to the durable tier",
        value=upload_failures,
    )
    yield GaugeMetricFamily(
        "lookout_memory_waiting_bytes",
        "bytes of blocks waiting to be written to chapters",
        value=lanes.waiting_bytes,
    )
    yield GaugeMetricFamily("lookout_memory_bytes", "bytes of chapters on disk", value=lanes.folder.bytes)
    yield GaugeMetricFamily(
        "lookout_memory_chapters", "chapters that can be read", value=len(lanes.folder.chapters())
    )
