"""The process that reads one camera, started by `Pull`.

Its standard input is the connection to the camera, the only connection it has. Arguments: descriptors of the
pipe for the job and of the pipe for replies.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import av
import av.error
import av.logging

from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.confine import Needs, confine, limit_resources
from lookout.video.sandbox.confinement import ConfinementError
from lookout.video.sandbox.cutter import Cutter
from lookout.video.sandbox.exchange import receive_message, send_message
from lookout.video.sandbox.plain_passwords import REFUSED, guard_input
from lookout.video.sandbox.seccomp import Network

MAX_JOB = 1 << 16
_ADDRESS_SPACE = 2 << 30  # large, for libraries and reserved ranges; the job limits private memory
_PROGRESS_S = 1.0
_REDIRECT = "Redirecting to"
_REDIRECTED = "the camera redirects to another address, which is not allowed"
_LOOK_S = 0.05


def main(arguments: list[str]) -> None:
    """Confine this process to the connection, then send segments until the connection ends."""
    jobs, replies = map(int, arguments)
    job = pb.PullJob.FromString(receive_message(jobs, MAX_JOB))
    try:
        _import_early()
        secret = urlsplit(job.url).password is not None
        guarded = secret and not job.basic and not job.url.startswith("rtsps:")
        start_guard = guard_input(lambda: _end(replies, REFUSED)) if guarded else None
        redirects = _Redirects(replies)

        def begin() -> None:
            """Start all threads of the process, which cannot start any once it is confined."""
            threading.Thread(target=_end_with_parent, args=(jobs,), name="parent", daemon=True).start()
            threading.Thread(target=redirects.watch, name="redirect", daemon=True).start()
            if start_guard is not None:
                start_guard()

        limit_resources(_ADDRESS_SPACE, 0, None, own_memory=job.memory_bytes)
        network = Network.DATAGRAMS if job.datagrams else Network.CONNECTION
        means = confine(strict=sys.platform == "linux", needs=needs_of(network, begin))
    except (ConfinementError, ImportError, OSError, ValueError) as error:
        _fail(replies, str(error), unconfined=True)
        return
    send_message(replies, pb.PullReply(ready=pb.Ready(confinement=means)).SerializeToString())
    try:
        _pull(job, replies, redirects)
        _fail(replies, "the camera ended the stream")
    except MemoryError:
        _fail(replies, f"the stream needs more than {job.memory_bytes >> 20} MiB of memory")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        _fail(replies, str(error))


def needs_of(network: Network, begin: Callable[[], object]) -> Needs:
    """Return the permissions that the process keeps, which are its connection, but no files and no new
    threads.

    Args:
        network: How the process reaches the camera.
        begin: Starts the process's threads.
    """
    return Needs(network, threads=False, begin=begin)


def _pull(job: pb.PullJob, replies: int, redirects: _Redirects) -> None:
    options = {
        "rtsp_transport": "udp" if job.datagrams else "tcp",
        "protocol_whitelist": "rtsp,rtsps,rtp,tcp,udp,tls,crypto",
        "timeout": str(round(job.connect_s * 1e6)),
    }
    with _opened(job, options, redirects) as source:
        stream = next(iter(source.streams.video), None)
        if stream is None:
            raise ValueError("the camera sends no video")
        cutter = Cutter(stream, job.segment_s, job.segment_bytes, job.jump_s)
        for segment in cutter.cut(_packets(source.demux(stream), cutter, job, replies)):
            reply = pb.PullReply()
            reply.segment.data, reply.segment.seconds = segment.data, segment.seconds
            reply.segment.waited_s = segment.waited_s
            reply.segment.dropped_packets = cutter.dropped_packets
            send_message(replies, reply.SerializeToString())


def _opened(job: pb.PullJob, options: dict[str, str], redirects: _Redirects) -> av.container.InputContainer:
    """Open the camera's stream.

    Raises:
        ValueError: The camera redirects to another address, or refuses the request.
        FFmpegError: The stream cannot be opened.
        TimeoutError: No picture arrived in time.
    """
    asked_at = time.monotonic()
    av.logging.set_level(av.logging.INFO)  # FFmpeg reports a redirect only in its log
    with av.logging.Capture() as lines:
        redirects.lines = lines
        try:
            return av.open(job.url, format="rtsp", options=options, timeout=job.connect_s)
        except av.error.FFmpegError as error:
            if _is_redirect(lines):
                raise ValueError(_REDIRECTED) from None
            raise _refused(error, job) or _cause(error, asked_at, job) from None
        finally:
            redirects.opened.set()
            av.logging.set_level(None)


def _refused(error: Exception, job: pb.PullJob) -> Exception | None:
    """Return a readable error for a camera that refuses the request (401, 403, 404); None for other
    errors."""
    match error:
        case av.error.HTTPUnauthorizedError():
            named = urlsplit(job.url).password is not None
            wants = "rejects this user name and password" if named else "requires a user name and password"
            return ValueError(f"the camera {wants} (401 Unauthorized)")
        case av.error.HTTPForbiddenError():
            return ValueError("the camera does not let this user see the stream (403 Forbidden)")
        case av.error.HTTPNotFoundError():
            return ValueError("the camera has no stream at this path (404 Not Found)")
    return None


class _Redirects:
    """Ends the process if the camera redirects to another address.

    After a redirect, FFmpeg closes the connection, cannot get another one, and would retry without a pause
    until its timeout.
    """

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self.lines: list[tuple[int, str, str]] = []  # FFmpeg's log
        self.opened = threading.Event()

    def watch(self) -> None:
        """Watch FFmpeg's log until the stream is open."""
        while not self.opened.wait(_LOOK_S):
            if _is_redirect(self.lines):
                _end(self._replies, _REDIRECTED)


def _is_redirect(lines: list[tuple[int, str, str]]) -> bool:
    return any(_REDIRECT in text for _, _, text in list(lines))


def _packets(
    packets: Iterator[av.Packet], cutter: Cutter, job: pb.PullJob, replies: int
) -> Iterator[av.Packet]:
    """Yield the packets; report progress to the parent, which may get no segment for a long time."""
    reported_at = came_at = time.monotonic()
    try:
        for packet in packets:
            came_at = time.monotonic()
            if came_at - reported_at > _PROGRESS_S:
                reported_at = came_at
                progress = pb.PullProgress(dropped_packets=cutter.dropped_packets)
                send_message(replies, pb.PullReply(progress=progress).SerializeToString())
            yield packet
    except av.error.FFmpegError as error:
        raise _cause(error, came_at, job) from None


def _cause(error: Exception, since: float, job: pb.PullJob) -> Exception:
    """Return the error to report. FFmpeg reports a silent camera only as invalid data or an exit."""
    if time.monotonic() - since < job.connect_s:
        return error
    return TimeoutError(f"no picture arrived for {job.connect_s:g} s")


def _end(replies: int, error: str) -> None:
    """Report an error, and end the process at once."""
    _fail(replies, error)
    os._exit(0)


def _fail(replies: int, error: str, *, unconfined: bool = False) -> None:
    failure = pb.PullFailure(error=error[:1000], unconfined=unconfined)
    send_message(replies, pb.PullReply(failure=failure).SerializeToString())


def _import_early() -> None:
    """Import modules that are otherwise imported on first use, which fails once the process is confined."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)


def _end_with_parent(jobs: int) -> None:
    """End this process as soon as its parent ends or closes the pipe."""
    while os.read(jobs, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
