"""Recordings from unknown sources, decoded in confined processes.

The recording is divided at keyframes as in `VideoReader`, but every piece is a job of a `SandboxPool`. A
piece that kills its decoder twice becomes a gap; the other pieces are still returned.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lookout.cores import usable_cores
from lookout.video.files.clipping import RecordingClip
from lookout.video.files.parallel import DecodeWork, FileFrame
from lookout.video.files.ranged import RangedSource
from lookout.video.files.recording import (
    UNDECODABLE,
    Gap,
    RecordingFacts,
    RecordingReader,
    Sampling,
    SamplingPlan,
    StreamFacts,
    broken_off,
    facts_of,
    gaps_of,
)
from lookout.video.files.source import FileSource
from lookout.video.files.table import FrameColumns, FrameTable, intervals_of, plan_ranges, share_out
from lookout.video.sandbox.jobs import ClipRequest, SampleRequest
from lookout.video.sandbox.pool import SandboxPool, SandboxSettings
from lookout.video.sandbox.reply_reader import SampledPick, SamplesReply, TableReply
from lookout.video.segments.sampling import Pick
from lookout.video.segments.types import CodecError, Reason

JOB_BYTES = 128 * 1024 * 1024
"""Maximum bytes of decoded pixels in one job. If the samples between two keyframes need more, they
become several jobs."""
JOB_FRAMES = 20_000
DEADLY = (Reason.POISON, Reason.MEMORY)


class SandboxedReader(RecordingReader):
    """A `VideoReader` that decodes in confined processes.

    Args:
        source: A file, or a recording that this process reads on behalf of its decoders.
        workers: Decoder processes (default: the cores that this process may use).

    Raises:
        CodecError: The file cannot be read, or this system cannot confine a process (UNAVAILABLE).
    """

    def __init__(self, source: str | os.PathLike[str] | RangedSource, *, workers: int | None = None) -> None:
        self._source = source if isinstance(source, RangedSource) else None
        name = os.fspath(source) if not isinstance(source, RangedSource) else source.name
        self._name = name if self._source is not None else os.path.abspath(name)
        self.workers = workers or usable_cores()
        if self._source is None:
            with FileSource(name).open():  # raises an error for an unreadable file before processes start
                pass
        self._pool = SandboxPool(
            self.workers, SandboxSettings(start_s=300.0, wall_s=600.0, cpu_s=600.0, recordings=True)
        )
        try:
            reply = self._pool.recording_table(self._name, self._source)
            table = _table(reply)
            super().__init__(facts_of(self._name, _stream(reply), table), table)
        except BaseException:
            self._pool.close()
            raise
        self._size = reply.size

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture, from the first frame that decodes."""
        return self._size

    def close(self) -> None:
        """End the decoder processes."""
        self._pool.close()

    def _sampling(self, plan: SamplingPlan) -> Sampling:
        count, size = plan.intervals or intervals_of(self.table, self.workers), plan.size
        limit = min(JOB_FRAMES, max(1, JOB_BYTES // (3 * size[0] * size[1])))
        jobs = self._jobs(list(plan.picks), limit, count)
        requests = [SampleRequest(self._name, tuple(job), size, plan.fit) for job in jobs]
        return SandboxedSampling(self._pool, self._source, requests, self.workers, self.facts)

    def _clip(self, start_us: int, end_us: int, max_bytes: int) -> RecordingClip:
        return self._pool.recording_clip(ClipRequest(self._name, start_us, end_us, max_bytes), self._source)

    def _jobs(self, picks: list[Pick], limit: int, intervals: int) -> list[list[Pick]]:
        """Return the samples of each job, in order."""
        pieces: list[list[Pick]] = [picks]
        if self.table.grouped and picks:
            by_pts = {pick.pts: pick for pick in picks}
            plan = share_out(plan_ranges(self.table, list(by_pts)), intervals)
            pieces = [
                sorted((by_pts[p] for run in runs for p in run.wanted), key=lambda pick: pick.index)
                for runs in plan
            ]
        return [piece[i : i + limit] for piece in pieces for i in range(0, len(piece), limit)]


def recording_length_us(pool: SandboxPool, path: str | os.PathLike[str]) -> int:
    """Return a file's duration, from its first picture to the end of its last, in microseconds.

    Args:
        pool: The decoders that read it.
        path: The file.

    Raises:
        CodecError: The file cannot be read.
    """
    reply = pool.recording_table(os.fspath(path))
    return facts_of(os.fspath(path), _stream(reply), _table(reply)).duration_us


class SandboxedSampling(Sampling):
    """Sampled frames from confined decoder processes."""

    def __init__(
        self,
        pool: SandboxPool,
        source: RangedSource | None,
        requests: Sequence[SampleRequest],
        workers: int,
        facts: RecordingFacts,
    ) -> None:
        self._pool, self._source, self._requests = pool, source, requests
        self._workers, self._facts = workers, facts
        self._picks = [pick for request in requests for pick in request.picks]
        self._lost: dict[int, str] = {}
        self._work = DecodeWork(packets=facts.frames)
        self._busy = 0.0
        self._closed = False

    def __len__(self) -> int:
        return len(self._picks)

    def __iter__(self) -> Iterator[FileFrame]:
        positions = {pick.index: i for i, pick in enumerate(self._picks)}
        with ThreadPoolExecutor(self._workers, thread_name_prefix="sandboxed") as threads:
            waiting: deque[tuple[SampleRequest, Future[SamplesReply]]] = deque()
            coming = iter(self._requests)
            try:
                for request in coming:
                    waiting.append((request, threads.submit(self._run, request)))
                    # One job more than there are processes, so that the next job already waits for a process
                    # that becomes free.
                    if len(waiting) > self._workers:
                        break
                while waiting and not self._closed:
                    request, result = waiting.popleft()
                    frames = self._frames(request.picks, result)
                    following = next(coming, None)
                    if following is not None:
                        waiting.append((following, threads.submit(self._run, following)))
                    for frame in frames:
                        yield dataclasses.replace(frame, position=positions[frame.index])
            finally:
                for _, result in waiting:
                    result.cancel()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return gaps_of(self._picks, self._lost, self._facts.duration_us) + broken_off(self._facts)

    @property
    def lost(self) -> Mapping[int, str]:
        return self._lost

    @property
    def work(self) -> DecodeWork:
        return self._work

    @property
    def busy_s(self) -> float:
        return self._busy / self._workers

    def close(self) -> None:
        self._closed = True

    def _run(self, request: SampleRequest) -> SamplesReply:
        begun = time.perf_counter()
        try:
            return self._pool.recording_sample(request, self._source)
        finally:
            self._busy += time.perf_counter() - begun

    def _frames(self, job: Sequence[Pick], result: Future[SamplesReply]) -> list[FileFrame]:
        """Return a job's frames; record its missing frames."""
        why = UNDECODABLE
        frames: dict[int, FileFrame] = {}
        try:
            reply = result.result()
            frames = {sample.pick: _frame(job[sample.pick], sample) for sample in reply.frames}
            for name in ("fed", "skipped", "frames", "painted", "runs", "seeks", "repaired"):
                setattr(self._work, name, getattr(self._work, name) + reply.work[name])
        except CodecError as error:
            # If a job kills its process, only the job's frames are lost; any other error affects the whole
            # file.
            if error.reason not in DEADLY:
                raise
            why = error.detail
        for place, pick in enumerate(job):
            if place not in frames:
                self._lost[pick.pts] = why
                self._work.missing += 1
        return [frames[place] for place in range(len(job)) if place in frames]


def _frame(pick: Pick, sample: SampledPick) -> FileFrame:
    return FileFrame(
        position=0,
        index=pick.index,
        slot=pick.slot,
        time_us=pick.time_us,
        key=sample.key,
        picture=sample.picture,
        corrupt=sample.corrupt,
        pixels=sample.pixels,
    )


def _stream(found: TableReply) -> StreamFacts:
    return StreamFacts(
        found.container,
        found.codec,
        found.width,
        found.height,
        found.damage,
        found.listed,
        found.promised_us,
        found.begins,
    )


def _table(found: TableReply) -> FrameTable:
    return FrameTable.of(
        FrameColumns(found.pts, found.dts, found.key, found.clean, found.bytes, found.discard),
        time_base=found.time_base,
        fps=found.fps,
        stamped=found.stamped,
        reordered=found.reordered,
    )
