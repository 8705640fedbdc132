"""The program of a sandboxed decoder process. `SandboxPool` starts it; no module imports it.

Arguments: descriptors of the job pipe, the reply pipe, the socket for files, the shared input and the shared
output, then settings as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from io import BufferedReader
from queue import SimpleQueue
from typing import BinaryIO

import av

from lookout.video.sandbox.confine import Needs, confine, limit_resources
from lookout.video.sandbox.confinement import ConfinementError
from lookout.video.sandbox.cuts import Cuts
from lookout.video.sandbox.exchange import REGULAR, SERVED, read_all, receive_message, send_message
from lookout.video.sandbox.jobs import (
    ClipRequest,
    DecoderJob,
    InspectRequest,
    SampleRequest,
    TableRequest,
    job_number,
    read_job,
)
from lookout.video.sandbox.recording_jobs import RecordingJobs
from lookout.video.sandbox.reply_writer import ReplyWriter, Result
from lookout.video.sandbox.serving import ServedFile
from lookout.video.segments import container, decoded_frame, timeline  # noqa: F401 (imported while that is allowed)
from lookout.video.segments.decoder import decode_segment
from lookout.video.segments.inspection import inspect_file
from lookout.video.segments.joining import join
from lookout.video.segments.masked_clip import masked_segment
from lookout.video.segments.types import (
    CodecError,
    CutRequest,
    DecodeRequest,
    JoinRequest,
    MaskRequest,
    Reason,
)

MAX_JOB = 16 << 20


@dataclass(frozen=True, slots=True)
class _Channels:
    jobs: int
    files: socket.socket
    shared_in: int
    shared_out: int


@dataclass(frozen=True, slots=True)
class _Jobs:
    """State that is kept from one job to the next."""

    cuts: Cuts
    recordings: RecordingJobs


def _queue(pipe: int) -> SimpleQueue[bytes]:
    """Read the parent's jobs on a separate thread, which ends this process as soon as the parent ends."""
    queue: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                queue.put(receive_message(pipe, MAX_JOB))
        except (EOFError, OSError, ValueError):
            os._exit(0)

    threading.Thread(target=read, name="jobs", daemon=True).start()
    return queue


def _file(channels: _Channels) -> BinaryIO:
    """Return the file that the parent sent with a job, opened according to its kind."""
    kind, descriptors, _, _ = socket.recv_fds(channels.files, 1, 1)
    if kind == SERVED:
        return BufferedReader(ServedFile(descriptors[0]), 16 * 1024)
    # A pipe is read without a buffer, which would return data only once it is full.
    return os.fdopen(descriptors[0], "rb", buffering=-1 if kind == REGULAR else 0)


def _run(job: DecoderJob, channels: _Channels, threads: int, jobs: _Jobs) -> Result:
    file = _file(channels) if job.with_file else None
    match job.request:
        case CutRequest() as cut:
            return jobs.cuts.pieces(cut, file)
        case InspectRequest(path):
            return inspect_file(path, file)
        case TableRequest(path):
            return jobs.recordings.table(path, file)
        case SampleRequest() as sample:
            return jobs.recordings.sample(sample, file)
        case ClipRequest() as clip:
            return jobs.recordings.clip(clip, file)
    return _of_segments(job, channels, threads)


def _of_segments(job: DecoderJob, channels: _Channels, threads: int) -> Result:
    if isinstance(job.request, JoinRequest):
        return join(job.request)
    data = bytes(read_all(channels.shared_in, job.size))
    if isinstance(job.request, MaskRequest):
        return masked_segment(data, job.request.mask, job.request.max_bytes)
    assert isinstance(job.request, DecodeRequest)
    return decode_segment(data, job.request, threads=threads)


def _answer(message: bytes, channels: _Channels, threads: int, jobs: _Jobs) -> bytes:
    replies, number = ReplyWriter(channels.shared_out), job_number(message)
    try:
        job = read_job(message, lambda size, at: bytes(read_all(channels.shared_in, size, at)))
        return replies.result(number, _run(job, channels, threads, jobs))
    except CodecError as error:
        return replies.refusal(number, error)
    except MemoryError:
        detail = "decoding needs more memory than a decoder may use"
        return replies.refusal(number, CodecError(Reason.MEMORY, detail))
    except Exception:  # a bug here or in the gather, which the parent reports; the process continues
        return replies.bug(number, traceback.format_exc(limit=-12))


def _import_early(modules: list[str]) -> None:
    """Import modules that are otherwise imported on first use, which fails once the process is confined."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        # `av.datasets`, which downloads samples, is not imported, because importing its HTTP and TLS takes a
        # tenth of the start-up time.
        if "__main__" not in module.name and module.name != "av.datasets":
            importlib.import_module(module.name)
    for name in modules:
        importlib.import_module(name)


def main(arguments: list[str]) -> None:
    """Confine this process, then run jobs until the parent closes the pipe."""
    jobs_fd, replies_fd, files_fd, shared_in, shared_out = map(int, arguments[:5])
    channels = _Channels(jobs_fd, socket.socket(fileno=files_fd), shared_in, shared_out)
    settings = json.loads(arguments[5])
    replies = ReplyWriter(shared_out)
    try:
        _import_early(settings["modules"])
        limit_resources(settings["memory"], settings["result"], settings["life_cpu_s"])
        # One thread reads jobs. FFmpeg starts more threads if `threads` allows it, and a recording needs two
        # threads.
        queues: list[SimpleQueue[bytes]] = []
        threads = settings["threads"] > 1 or settings["recordings"]
        needs = Needs(threads=threads, begin=lambda: queues.append(_queue(jobs_fd)))
        means = confine(strict=settings["strict"], landlock=settings["landlock"], needs=needs)
    except (ConfinementError, ImportError, OSError, ValueError) as error:
        send_message(replies_fd, replies.refusal(0, CodecError(Reason.UNAVAILABLE, str(error))))
        return
    (jobs,) = queues
    send_message(replies_fd, replies.ready(means))
    begun = _Jobs(Cuts(), RecordingJobs())
    while True:
        send_message(replies_fd, _answer(jobs.get(), channels, settings["threads"], begun))


if __name__ == "__main__":
    main(sys.argv[1:])
