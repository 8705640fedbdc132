"""A pool of confined decoder processes."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from lookout.errors import LookoutError
from lookout.video.files.clipping import RecordingClip
from lookout.video.motion.hiding import PictureMask
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.child import bare_environment, cpu_seconds, thread_count
from lookout.video.sandbox.exchange import (
    REGULAR,
    SERVED,
    STREAM,
    receive_message,
    send_message,
    shared_file,
    write_all,
)
from lookout.video.sandbox.jobs import (
    ClipRequest,
    DecoderJob,
    InspectRequest,
    Request,
    SampleRequest,
    TableRequest,
    job_message,
)
from lookout.video.sandbox.reply_reader import (
    MAX_REPLY,
    BugError,
    Planes,
    ReplyError,
    Result,
    SamplesReply,
    TableReply,
    clean_text,
    parse_reply,
    raise_failure,
    read_result,
)
from lookout.video.sandbox.serving import ServedSource, served
from lookout.video.segments.types import (
    CodecError,
    CutRequest,
    DecodedSegment,
    DecodeRequest,
    JoinedClip,
    JoinRequest,
    MaskRequest,
    Reason,
    Segment,
)

if TYPE_CHECKING:
    from lookout.video.segments.inspection import Inspection

# The kernel's limit is for the process's whole life, because a confined process cannot raise it. `_check_cpu`
# enforces each job's limit.
CPU_JOBS = 10
"""A worker's CPU limit for its whole life, as a multiple of `cpu_s`. The worker is replaced before it
reaches this limit."""
#: CPU seconds that an idle decoder may use, and seconds between checks
IDLE_CPU_S = 0.5
_LOOK_S = 1.0
_pipes = count()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Resources of one worker.

    Attributes:
        memory: Address space, bytes.
        result: Maximum bytes of a job's result.
        cpu_s: CPU seconds for one job.
        wall_s: Seconds for one job.
        start_s: Seconds to start.
        threads: Slice threads of the decoder.
        recordings: Whether the worker samples whole recordings, which needs threads. Without recordings
            and with one slice thread, the process may not start threads.
        jobs: Number of jobs after which a worker is replaced.
        strict: Whether to refuse to work if the kernel cannot confine a process.
        landlock: Whether to use Landlock if the kernel has it.
        modules: Modules imported before the worker is confined; they must define the gathers of requests.
    """

    memory: int = 2 * 1024**3
    result: int = 512 * 1024**2
    cpu_s: float = 60.0
    wall_s: float = 90.0
    start_s: float = 120.0
    threads: int = 1
    recordings: bool = False
    jobs: int = 2000
    strict: bool = True
    landlock: bool = True
    modules: tuple[str, ...] = ()


class SandboxError(LookoutError, RuntimeError):
    """The code in a worker failed, which is not the segment's fault; the message is the traceback."""


class _WorkerLostError(Exception):
    """A worker died, hung, exceeded a limit or sent an invalid reply."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job. `data`: a segment's bytes; `opened`: returns a descriptor of the input, and is called once per
    attempt.
    """

    request: Request
    data: bytes = b""
    opened: Callable[[], AbstractContextManager[int]] | None = None


class _Worker:
    """A child process and the channels to it."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        # Both sides share memory, so that a segment and its pictures are not copied through a pipe.
        self._in, self._out = shared_file(), shared_file()
        job_read, self._jobs = os.pipe()
        self._replies, reply_write = os.pipe()
        self._files, files_read = socket.socketpair()
        # Writes have a deadline, so that a worker that does not read its job cannot block the caller.
        os.set_blocking(self._jobs, False)
        self._files.settimeout(settings.wall_s)
        fields = ("memory", "result", "threads", "recordings", "strict", "landlock", "modules")
        options = json.dumps(
            {name: getattr(settings, name) for name in fields} | {"life_cpu_s": CPU_JOBS * settings.cpu_s}
        )
        child = (job_read, reply_write, files_read.fileno(), self._in, self._out)
        directory = tempfile.mkdtemp(prefix="lookout-codec-")
        try:
            # A new program, not a fork, because threads of Kafka and gRPC may hold any lock in this process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lookout.video.sandbox.worker", *map(str, child), options],
                cwd=directory,
                env=bare_environment(),
                pass_fds=child,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A Ctrl-C for this process must not look like a segment that kills its decoder.
                start_new_session=True,
            )
        finally:
            # The directory is the child's working directory. It is removed now, so that it stays empty and
            # needs no cleanup later.
            os.rmdir(directory)
            os.close(job_read)
            os.close(reply_write)
            files_read.close()
        self.done = 0
        self._ready = False
        self._begun_cpu_s = 0.0  # CPU time of the process when it took its first job
        self._job_cpu_s = 0.0  # CPU time of the process at which its job exceeds the limit
        self.means = ""
        self._rest_cpu_s = 0.0
        # The worker's two threads, and codecs' threads if allowed; some codecs start a few more than
        # configured.
        self._most_threads = 16 + 4 * settings.threads

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def spent(self) -> bool:
        """Whether the next job could reach the process's CPU limit before the job's limit."""
        used = cpu_seconds(self.pid)
        return used is not None and used - self._begun_cpu_s > (CPU_JOBS - 1) * self._settings.cpu_s

    def run(self, job: _Job, wall_s: float | None) -> Result:
        """Run a job and return its result, within `wall_s` seconds.

        Raises:
            _WorkerLostError: The worker died or did not answer in time.
            CodecError: The input cannot be decoded; `reason` says why.
            SandboxError: The code in the worker failed.
        """
        if not self._ready:
            # Imports do not count towards the first job's CPU time.
            self._job_cpu_s = self._settings.start_s
            ready = self._expect(self._settings.start_s, "did not start", 0)
            raise_failure(ready)
            self._begun_cpu_s = cpu_seconds(self.pid) or 0.0
            self.means = clean_text(ready.ready.confinement, 200)
            if "no Landlock" in self.means:
                _log.warning("decoders are confined by %s", self.means)
            self._ready = True
        with nullcontext() if job.opened is None else job.opened() as file:
            return self._run(job, file, wall_s)

    def _run(self, job: _Job, file: int | None, wall_s: float | None) -> Result:
        number = self.done + 1
        message = job_message(number, DecoderJob(job.request, len(job.data), with_file=file is not None))
        used = cpu_seconds(self.pid)
        self._job_cpu_s = (used or 0.0) + self._settings.cpu_s
        try:
            write_all(self._in, job.data)
            if file is not None:
                socket.send_fds(self._files, [_kind(file)], [file])
            send_message(self._jobs, message, self._settings.wall_s)
        except TimeoutError:
            raise _WorkerLostError("accepts no job") from None
        except OSError:
            raise _WorkerLostError(self._fate()) from None
        reply = self._expect(wall_s, "hung", number)
        self.done = number
        try:
            raise_failure(reply)
            planes = Planes(self._out, self._settings.result)
            result = read_result(reply, job.request, len(job.data), planes)
        except BugError as bug:
            raise SandboxError(str(bug)) from None
        except ReplyError as error:
            raise _WorkerLostError(f"sent a reply that cannot be read ({error})") from None
        # This frees the pages, so that a large segment does not stay in memory until the next segment.
        os.ftruncate(self._in, 0)
        os.ftruncate(self._out, 0)
        return result

    def _expect(self, seconds: float | None, otherwise: str, number: int) -> pb.Reply:
        try:
            message = receive_message(self._replies, MAX_REPLY, seconds, self._check_cpu)
            return parse_reply(message, number)
        except TimeoutError:
            raise _WorkerLostError(f"{otherwise} within {seconds or 0:g} s") from None
        except (EOFError, OSError):
            raise _WorkerLostError(self._fate()) from None
        except ValueError as error:
            raise _WorkerLostError(f"sent a reply that cannot be read ({error})") from None

    def _check_cpu(self) -> None:
        """Kill the process if its job has used too much CPU time, or if it has too many threads. The process
        could ignore the signal of its CPU limit, but not this kill.
        """
        used = cpu_seconds(self.pid)
        if used is not None and used > self._job_cpu_s:
            self._process.kill()
            raise _WorkerLostError(f"used more than {self._settings.cpu_s:g} s of CPU")
        if self._ready and self.threads > self._most_threads:
            self._process.kill()
            raise _WorkerLostError(f"started more than {self._most_threads} threads")

    @property
    def threads(self) -> int:
        """Current number of threads of the process."""
        return thread_count(self.pid)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def rest(self) -> None:
        """Mark the process as idle, so that it may use no CPU time until the next `run`."""
        self._rest_cpu_s = cpu_seconds(self.pid) or 0.0

    def check_idle(self) -> None:
        """Kill the process if it has used CPU time or started threads without a job, that is, since
        `rest`.
        """
        used = cpu_seconds(self.pid)
        if used is None or self.ended:
            return
        if used - self._rest_cpu_s > IDLE_CPU_S or self.threads > self._most_threads:
            _log.warning(
                "killing an idle decoder, which used %.1f s of CPU or started threads",
                used - self._rest_cpu_s,
            )
            self._process.kill()

    def _fate(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def kill(self) -> None:
        """Kill the process; callers waiting for it get an error."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and close every descriptor."""
        self._process.kill()
        self._process.wait()
        self._files.close()
        for descriptor in (self._jobs, self._replies, self._in, self._out):
            os.close(descriptor)


class SandboxPool:
    """Decoder processes shared by any number of threads.

    A worker cannot open files, use sockets, start programs or reach other processes. It works in an empty
    directory, with limited memory and time. Its inputs come as descriptors from the pool. If a worker dies or
    hangs, it is replaced and the job is retried once; if the job fails a second time, `CodecError` with
    POISON is raised. Use the pool as a context manager or call `close`, so that no process remains; workers
    also end when this process does.
    """

    def __init__(self, workers: int = 1, settings: SandboxSettings | None = None) -> None:
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, not {workers}")
        self.settings = settings or SandboxSettings()
        self.restarts = 0
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()
        self._idle: set[_Worker] = set()
        self._closed = False
        # None is a seat that has no process yet. Last in, first out, so that only as many processes stay warm
        # as needed.
        self._seats: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._seats.put(None)

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode one segment.

        Raises:
            CodecError: The segment cannot be decoded; `reason` says why.
            SandboxError: The request's gather failed.
        """
        if len(segment) > request.limits.bytes:
            raise CodecError(
                Reason.BYTES, f"{len(segment)} bytes exceed the limit of {request.limits.bytes} for a segment"
            )
        return cast(DecodedSegment, self._run(_Job(request, segment)))

    def inspect(self, path: str) -> Inspection:
        """Inspect one file; problems with its content are reported in the result.

        Raises:
            CodecError: With UNREADABLE, UNAVAILABLE, CLOSED or POISON.
        """
        with _opened(path) as file:
            request = InspectRequest(path, os.fstat(file).st_size)
        return cast("Inspection", self._run(_Job(request, opened=partial(_opened, path))))

    def cut(
        self, path: str | os.PathLike[str], *, target_s: float = 2.0, max_bytes: int = 15 * 1024 * 1024
    ) -> Iterator[Segment]:
        """Yield the pieces of a file, cut as by `lookout.video.segments.cut`, a few per job.

        Raises:
            CodecError: The file cannot be cut; `reason` says why.
        """
        request = CutRequest(os.path.abspath(path), target_s, max_bytes)
        while True:
            pieces = cast(tuple[Segment, ...], self._run(_Job(request, opened=partial(_opened, path))))
            if not pieces:
                return
            yield from pieces
            # Every job opens the file again, so that another worker, or a dead worker's replacement, can
            # continue at `first`.
            request = replace(request, first=request.first + len(pieces))

    def cut_stream(
        self, pipe: BinaryIO, *, target_s: float = 2.0, max_bytes: int = 15 * 1024 * 1024
    ) -> Iterator[Segment]:
        """Cut a pipe into pieces and yield each piece when it is complete; wait for the pipe without a time
        limit.

        One worker reads the pipe from beginning to end. A pipe cannot be read twice, so a worker that dies is
        not replaced.

        Raises:
            CodecError: As for `lookout.video.segments.cut`, or with POISON.
        """
        request = CutRequest(f"pipe {next(_pipes)}", target_s, max_bytes, limit=1)
        piped = nullcontext(pipe.fileno())
        job = _Job(request, opened=lambda: piped)
        worker = self._take()
        try:
            while True:
                pieces = cast(tuple[Segment, ...], worker.run(job, wall_s=None))
                if not pieces:
                    return
                yield from pieces
                request = replace(request, first=request.first + len(pieces))
                job = _Job(request)
        except _WorkerLostError as lost:
            if self._closed:
                raise CodecError(Reason.CLOSED, "the decoder pool was closed during decoding") from None
            raise CodecError(Reason.POISON, f"the decoder failed on the stream: {lost}") from None
        finally:
            self._drop(worker, restart=False)  # it has the pipe, which no other worker can continue

    def recording_table(self, path: str, source: ServedSource | None = None) -> TableReply:
        """Return the packet table of a whole file.

        Args:
            path: The file.
            source: A recording to read instead of a file; `path` is then only its name.

        Raises:
            CodecError: The file cannot be read; `reason` says why.
        """
        opened, size = partial(_opened, path), 0
        if source is not None:
            opened, size = partial(served, source), source.size
        else:
            path = os.path.abspath(path)
            with _opened(path) as file:
                size = os.fstat(file).st_size
        return cast(TableReply, self._run(_Job(TableRequest(path, size), opened=opened)))

    def recording_sample(self, request: SampleRequest, source: ServedSource | None = None) -> SamplesReply:
        """Decode some frames of a file.

        Args:
            request: The frames.
            source: A recording to read instead of a file.

        Raises:
            CodecError: With POISON: the frames killed two decoders.
        """
        if source is not None:
            return cast(SamplesReply, self._run(_Job(request, opened=partial(served, source))))
        absolute = replace(request, path=os.path.abspath(request.path))
        return cast(SamplesReply, self._run(_Job(absolute, opened=partial(_opened, absolute.path))))

    def recording_clip(self, request: ClipRequest, source: ServedSource | None = None) -> RecordingClip:
        """Cut a range of a file into a separate file.

        Args:
            request: The range.
            source: A recording to read instead of a file.

        Raises:
            CodecError: The range cannot be cut; the reason is POISON if it killed two decoders.
        """
        opened = partial(_opened, request.path) if source is None else partial(served, source)
        return cast(RecordingClip, self._run(_Job(request, opened=opened)))

    def join(self, request: JoinRequest) -> JoinedClip:
        """Make one file from a camera's time range (see `lookout.video.segments.joining.join`).

        Args:
            request: Segments and range.

        Raises:
            CodecError: No clip can be made; the reason is POISON if the segments killed two decoders.
        """
        data = b"".join(segment.data for segment in request.segments)
        return cast(JoinedClip, self._run(_Job(request, data)))

    def masked(self, segment: bytes, mask: PictureMask, max_bytes: int) -> bytes:
        """Return a segment with a mask applied, see `lookout.video.segments.masked_clip.masked_segment`.

        Raises:
            CodecError: The segment cannot be decoded or encoded; the reason is POISON if it killed two
                decoders.
        """
        return cast(bytes, self._run(_Job(MaskRequest(mask, max_bytes), segment)))

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are running."""
        with self._lock:
            return sorted(worker.pid for worker in self._alive)

    def _run(self, job: _Job) -> Result:
        fates: list[str] = []
        # Tried twice, because a process may also die for reasons unrelated to the job, for example if the
        # machine runs out of memory.
        while len(fates) < 2:
            worker = self._take()
            try:
                result = worker.run(job, self.settings.wall_s)
            except _WorkerLostError as lost:
                self._drop(worker)
                fates.append(str(lost))
                continue
            except CodecError as error:
                # The process could not confine itself, and has ended.
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
            raise CodecError(Reason.CLOSED, "the decoder pool was closed during decoding")
        raise CodecError(Reason.POISON, f"the decoder failed twice on it: {fates[0]}, then {fates[1]}")

    def _take(self) -> _Worker:
        seat = self._seats.get()
        with self._lock:
            if self._closed:
                self._seats.put(seat)
                raise CodecError(Reason.CLOSED, "the decoder pool is closed")
            if seat is not None:
                self._idle.discard(seat)
                if not seat.ended:
                    return seat
                self._alive.discard(seat)
                seat.close()
            try:
                worker = _Worker(self.settings)
            except BaseException:
                self._seats.put(None)
                raise
            self._alive.add(worker)
            return worker

    def _give(self, worker: _Worker) -> None:
        if self._closed or worker.done >= self.settings.jobs or worker.spent:
            self._retire(worker)
            self._seats.put(None)
        else:
            worker.rest()
            with self._lock:
                self._idle.add(worker)
            self._seats.put(worker)
            _idle_watch.add(self)

    def check_idle_workers(self) -> bool:
        """Kill idle workers that use CPU time; return whether any worker is idle."""
        with self._lock:  # so that no worker is taken and the pool is not closed
            for worker in self._idle:
                worker.check_idle()
            return bool(self._idle)

    def _drop(self, worker: _Worker, restart: bool = True) -> None:
        self._retire(worker)
        with self._lock:
            self.restarts += restart and not self._closed
        self._seats.put(None)

    def _retire(self, worker: _Worker) -> None:
        with self._lock:
            mine = worker in self._alive
            self._alive.discard(worker)
            self._idle.discard(worker)
        if mine:
            worker.close()

    def close(self) -> None:
        """Kill all workers, including busy workers, whose callers get a `CodecError` with CLOSED."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._alive)
        # Kill before clearing the seats, so that callers waiting for a worker return its seat.
        for worker in workers:
            worker.kill()
        self._clear_seats()

    def _clear_seats(self) -> None:
        """Kill idle workers. A busy worker is killed and closed by the thread that waits for it."""
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


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """Give the block a descriptor of a file that is open for reading. Errors: `CodecError` with
    UNREADABLE.
    """
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CodecError(Reason.UNREADABLE, f"cannot be read ({error.strerror or error})") from None
    with file:
        yield file.fileno()


def _kind(file: int) -> bytes:
    """Return the kind of a descriptor, which is sent to the decoder because the decoder may not ask the
    kernel.
    """
    mode = os.fstat(file).st_mode
    return SERVED if stat.S_ISSOCK(mode) else REGULAR if stat.S_ISREG(mode) else STREAM


class _IdleWatch:
    """Watches the idle workers of all pools of this process, on one thread, which runs while there are idle
    workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[SandboxPool] = weakref.WeakSet()
        self._runs = False

    def add(self, pool: SandboxPool) -> None:
        """Watch a pool that now has an idle worker."""
        with self._lock:
            self._pools.add(pool)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="idle-decoders", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                idle = [pool for pool in self._pools if pool.check_idle_workers()]
                self._runs = bool(idle)
                if not self._runs:
                    return


_idle_watch = _IdleWatch()
