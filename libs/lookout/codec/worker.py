"""The sandboxed decoder process. Started by `SandboxPool`, never imported by anyone else.

Arguments: descriptors of the job pipe, the reply pipe, the shared input and the shared output, then
settings as JSON."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue

from lookout.codec.confine import ConfinementError, limit_cpu, limit_memory, take_away_network
from lookout.codec.cuts import Cuts
from lookout.codec.decoder import decode_segment
from lookout.codec.exchange import Reply, read_all, store_result
from lookout.codec.inspection import inspect_file
from lookout.codec.recording_jobs import RecordingJobs
from lookout.codec.types import CodecError, Reason


def _jobs(pipe: Connection) -> SimpleQueue[bytes]:
    """The parent's jobs, read on a thread of its own: once the parent is gone, so is this process, at
    once."""
    queue: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                queue.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, name="jobs", daemon=True).start()
    return queue


def _run(job: bytes, shared_in: int, threads: int, cuts: Cuts, recordings: RecordingJobs) -> object:
    kind, size, argument = pickle.loads(job)  # jobs come from the parent, which is trusted
    if kind == "cut":
        return cuts.pieces(argument)
    if kind == "inspect":
        return inspect_file(argument)
    if kind == "recording":
        return recordings.run(argument)
    return decode_segment(bytes(read_all(shared_in, size)), argument, threads=threads)


def _answer(  # noqa: PLR0917
    job: bytes, shared_in: int, shared_out: int, threads: int, cuts: Cuts, recordings: RecordingJobs
) -> Reply:
    try:
        return store_result(shared_out, _run(job, shared_in, threads, cuts, recordings))
    except CodecError as error:
        return Reply("error", error.detail, error.reason.value)
    except MemoryError:
        return Reply("error", "decoding needs more memory than a decoder may use", Reason.MEMORY.value)
    except Exception:  # a bug here or in the gather: the parent reports it and lives
        return Reply("broken", traceback.format_exc(limit=-12))


def main(arguments: list[str]) -> None:
    """Give up what decoding does not need, then decode until the parent hangs up."""
    job_fd, reply_fd, shared_in, shared_out = map(int, arguments[:4])
    settings = json.loads(arguments[4])
    replies = Connection(reply_fd, readable=False)
    try:
        jobs = _jobs(Connection(job_fd, writable=False))
        limit_memory(settings["memory"])
        means = take_away_network(settings["strict"])
    except (ConfinementError, OSError, ValueError) as error:
        replies.send_bytes(Reply("error", str(error), Reason.UNAVAILABLE.value).encode())
        return
    replies.send_bytes(Reply("ready", means).encode())
    cuts, recordings = Cuts(), RecordingJobs()
    while True:
        job = jobs.get()
        limit_cpu(settings["cpu_s"])
        replies.send_bytes(
            _answer(job, shared_in, shared_out, settings["threads"], cuts, recordings).encode()
        )


if __name__ == "__main__":
    main(sys.argv[1:])
