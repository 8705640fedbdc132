"""Decoding in child processes that can do nothing but decode."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from lookout.codec.exchange import Reply, load_result, shared_file, write_all
from lookout.codec.types import CodecError, CutRequest, DecodedSegment, DecodeRequest, Reason, Segment
from lookout.errors import LookoutError

if TYPE_CHECKING:
    from lookout.codec.inspection import Inspection
    from lookout.codec.recording_jobs import SampleRequest, SampleResult, TableResult

MAX_REPLY = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What one worker may use.

    memory: address space, bytes; cpu_s: CPU seconds for one job; wall_s: seconds for one job; start_s:
    seconds to start; threads: slice threads of the decoder; jobs: jobs before a worker is replaced; strict:
    refuse to work where sockets cannot be taken away for good."""

    memory: int = 2 * 1024**3
    cpu_s: float = 60.0
    wall_s: float = 90.0
    start_s: float = 120.0
    threads: int = 1
    jobs: int = 2000
    strict: bool = True


class SandboxError(LookoutError, RuntimeError):
    """The code in a worker failed (not the segment): its trace is the message."""


class _WorkerLostError(Exception):
    """A worker died or hung."""


class _Worker:
    """One child process and the channels to it."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._in, self._out = shared_file(), shared_file()
        job_read, job_write = os.pipe()
        reply_read, reply_write = os.pipe()
        self._jobs, self._replies = (
            Connection(job_write, readable=False),
            Connection(reply_read, writable=False),
        )
        fields = ("memory", "cpu_s", "threads", "strict")
        options = json.dumps({name: getattr(settings, name) for name in fields})
        child = (job_read, reply_write, self._in, self._out)
        directory = tempfile.mkdtemp(prefix="lookout-codec-")
        try:
            # A new program, never a fork: threads of Kafka and gRPC may hold any lock in this process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lookout.codec.worker", *map(str, child), options],
                cwd=directory,
                env=_environment(),
                pass_fds=child,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A Ctrl-C meant for this process must not look like a segment that kills its decoder.
                start_new_session=True,
            )
        finally:
            # The child sits in it already: removed it stays empty, and nobody has to remove it later.
            os.rmdir(directory)
            os.close(job_read)
            os.close(reply_write)
        self.done = 0
        self._ready = False
        self.means = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, kind: str, data: bytes, argument: object) -> object:
        """One job. Errors: `_WorkerLostError`, `CodecError`, `SandboxError`."""
        if not self._ready:
            self._expect(self._settings.start_s, "did not start")
            self._ready = True
        try:
            write_all(self._in, data)
            self._jobs.send_bytes(pickle.dumps((kind, len(data), argument)))
        except (BrokenPipeError, OSError):
            raise _WorkerLostError(self._fate()) from None
        reply = self._expect(self._settings.wall_s, "hung")
        self.done += 1
        try:
            result = load_result(self._out, reply)
        except Exception as error:  # whatever a worker gone wrong may have written
            raise _WorkerLostError(f"sent no result that can be read ({error})") from None
        os.ftruncate(self._in, 0)
        os.ftruncate(self._out, 0)
        return result

    def _expect(self, seconds: float, otherwise: str) -> Reply:
        try:
            if not self._replies.poll(seconds):
                raise _WorkerLostError(f"{otherwise} within {seconds:g} s")
            reply = Reply.decode(self._replies.recv_bytes(MAX_REPLY))
        except (EOFError, OSError):
            raise _WorkerLostError(self._fate()) from None
        except (ValueError, TypeError, KeyError) as error:
            raise _WorkerLostError(f"sent no answer that can be read ({error})") from None
        if reply.status == "error":
            raise CodecError(Reason(reply.reason), reply.detail)
        if reply.status == "broken":
            raise SandboxError(reply.detail)
        if reply.status == "ready":
            self.means = reply.detail
        return reply

    def _fate(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        if code == -signal.SIGXCPU:
            return f"used more than {self._settings.cpu_s:g} s of CPU"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def kill(self) -> None:
        """End the process; whoever waits for it learns so."""
        self._process.kill()

    def close(self) -> None:
        """End the process and give every descriptor back."""
        self._process.kill()
        self._process.wait()
        self._jobs.close()
        self._replies.close()
        os.close(self._in)
        os.close(self._out)


class SandboxPool:
    """Decoder processes shared by any number of threads.

    A worker has no sockets, starts no programs, works in an empty directory and is limited in memory and
    time. One that dies or hangs is replaced and the job tried once more; a segment that does it twice is a
    `CodecError` with POISON. Use it as a context manager or call `close`; nothing is left running, and
    workers also end when this process does."""

    def __init__(self, workers: int = 1, settings: SandboxSettings | None = None) -> None:
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, not {workers}")
        self.settings = settings or SandboxSettings()
        self.restarts = 0
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._closed = False
        # None is a seat without a process yet; last in, first out keeps few processes warm.
        self._seats: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._seats.put(None)

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode one segment. Errors: `CodecError`; `SandboxError` if the request's gather fails."""
        if len(segment) > request.limits.bytes:
            raise CodecError(
                Reason.BYTES, f"{len(segment)} bytes exceed the limit of {request.limits.bytes} for a segment"
            )
        return cast(DecodedSegment, self._run("decode", segment, request))

    def inspect(self, path: str) -> Inspection:
        """Inspect one file; what is wrong with it is in the result. Errors: `CodecError` with UNAVAILABLE,
        CLOSED or POISON."""
        return cast("Inspection", self._run("inspect", b"", path))

    def cut(
        self, path: str | os.PathLike[str], *, target_s: float = 2.0, max_bytes: int = 15 * 1024 * 1024
    ) -> Iterator[Segment]:
        """The pieces of a file, a few at a time, as `lookout.codec.cut` makes them. Errors: `CodecError`."""
        request = CutRequest(os.path.abspath(path), target_s, max_bytes)
        while pieces := cast(tuple[Segment, ...], self._run("cut", b"", request)):
            yield from pieces
            request = replace(request, first=request.first + len(pieces))

    def recording_table(self, path: str) -> TableResult:
        """The packets of a whole file. Errors: `CodecError`."""
        from lookout.codec.recording_jobs import TableRequest

        return cast("TableResult", self._run("recording", b"", TableRequest(os.path.abspath(path))))

    def recording_sample(self, request: SampleRequest) -> SampleResult:
        """Some frames of a file. Errors: `CodecError`, with POISON where they kill the decoder twice."""
        wanted = replace(request, path=os.path.abspath(request.path))
        return cast("SampleResult", self._run("recording", b"", wanted))

    def pids(self) -> list[int]:
        """Process ids of the workers that run now."""
        with self._lock:
            return sorted(worker.pid for worker in self._alive)

    def _run(self, kind: str, data: bytes, argument: object) -> object:
        fates: list[str] = []
        while len(fates) < 2:
            worker = self._take()
            try:
                result = worker.run(kind, data, argument)
            except _WorkerLostError as lost:
                self._drop(worker)
                fates.append(str(lost))
                continue
            except CodecError as error:
                if error.reason is Reason.UNAVAILABLE:
                    self._drop(worker)
                else:
                    self._give(worker)
                raise
            except SandboxError:
                self._give(worker)
                raise
            except BaseException:
                self._drop(worker)
                raise
            self._give(worker)
            return result
        if self._closed:
            raise CodecError(Reason.CLOSED, "the decoder pool was closed while it decoded")
        raise CodecError(Reason.POISON, f"the decoder failed twice on it: {fates[0]}, then {fates[1]}")

    def _take(self) -> _Worker:
        seat = self._seats.get()
        with self._lock:
            if self._closed:
                self._seats.put(seat)
                raise CodecError(Reason.CLOSED, "the decoder pool is closed")
            if seat is not None:
                return seat
            try:
                worker = _Worker(self.settings)
            except BaseException:
                self._seats.put(None)
                raise
            self._alive.add(worker)
            return worker

    def _give(self, worker: _Worker) -> None:
        if self._closed or worker.done >= self.settings.jobs:
            self._retire(worker)
            self._seats.put(None)
        else:
            self._seats.put(worker)

    def _drop(self, worker: _Worker) -> None:
        self._retire(worker)
        with self._lock:
            self.restarts += not self._closed
        self._seats.put(None)

    def _retire(self, worker: _Worker) -> None:
        with self._lock:
            mine = worker in self._alive
            self._alive.discard(worker)
        if mine:
            worker.close()

    def close(self) -> None:
        """End all workers, also those at work: their callers get a `CodecError` with CLOSED."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._alive)
        for worker in workers:
            worker.kill()
        self._clear_seats()

    def _clear_seats(self) -> None:
        """Retire idle workers. A busy one is retired by the thread that waits for it."""
        idle: list[_Worker | None] = []
        while True:
            try:
                idle.append(self._seats.get_nowait())
            except queue.Empty:
                break
        for seat in idle:
            if seat is not None:
                self._retire(seat)
            self._seats.put(None)

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment() -> dict[str, str]:
    """Only what Python needs to find the same modules; no credentials, no proxies."""
    kept: dict[str, Any] = {
        k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT")
    }
    path = os.pathsep.join(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
