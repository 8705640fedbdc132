"""Reads a camera through a process that can reach only the connection to this camera."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from lookout.text import clean
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.child import bare_environment, cpu_seconds
from lookout.video.sandbox.cutter import CutSegment
from lookout.video.sandbox.exchange import receive_message, send_message

_START_S = 120.0  # long, because imports are slow on a loaded machine
_GRACE_S = 20.0
_LOOK_S = 2.0
_CPU_S, _CPU_SHARE = 20.0, 0.5  # allowance for starting, then share of one core; cutting takes 2 %
_OVERHEAD = 2 << 20  # of MPEG-TS and of the message
_LONGEST_S = 86_400.0
_TEXT = 1000


class PullError(RuntimeError):
    """The connection to the camera ended; the message says why."""


class Pull:
    """Reads a camera through a separate, confined process until `end`.

    The process has the connection, this camera's credentials, and bounded memory and time. It has no files,
    no other connection, and no data of other cameras. Its output is treated as untrusted, like the camera's
    bytes.

    Args:
        connection: Connection to the camera; the process gets a copy.
        job: Settings of the pull.
    """

    def __init__(self, connection: socket.socket, job: pb.PullJob) -> None:
        self.dropped_packets = 0
        self._job = job
        self._silence_s = 2 * job.connect_s + _GRACE_S
        self._begun = time.monotonic()
        job_read, self._jobs = os.pipe()
        self._replies, reply_write = os.pipe()
        os.set_blocking(self._jobs, False)
        command = [sys.executable, "-m", "lookout.video.sandbox.puller"]
        directory = tempfile.mkdtemp(prefix="lookout-camera-")
        try:
            self._process = subprocess.Popen(
                [*command, str(job_read), str(reply_write)],
                cwd=directory,
                env=bare_environment(),
                pass_fds=(job_read, reply_write),
                stdin=connection.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._jobs)
            os.close(self._replies)
            raise
        finally:
            os.rmdir(directory)  # the process's working directory stays empty
            os.close(job_read)
            os.close(reply_write)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def begin(self) -> None:
        """Send the process its job, and return once the process is confined and about to read the camera.

        Raises:
            PullError: The process does not start.
        """
        try:
            send_message(self._jobs, self._job.SerializeToString(), _START_S)
            self._next(_START_S)
        except (EOFError, OSError, TimeoutError) as error:
            raise PullError(f"the process that reads the camera {self._fate(error)}") from None

    def segments(self) -> Iterator[CutSegment]:
        """Yield the camera's segments, each as soon as it is complete.

        Raises:
            PullError: The connection ended, or the process exceeded a limit.
        """
        try:
            while True:
                reply = self._next(self._silence_s)
                if reply.WhichOneof("outcome") == "segment":
                    yield self._segment(reply.segment)
                else:
                    self.dropped_packets = reply.progress.dropped_packets
        except (EOFError, OSError, TimeoutError) as error:
            raise PullError(f"the process that reads the camera {self._fate(error)}") from None

    def end(self) -> None:
        """Kill the process; callers waiting for its segments get an error."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and close all descriptors."""
        self._process.kill()
        self._process.wait()
        os.close(self._jobs)
        os.close(self._replies)

    def _next(self, seconds: float) -> pb.PullReply:
        deadline = time.monotonic() + seconds
        while not select.select([self._replies], [], [], _LOOK_S)[0]:
            self._check_cpu()
            if time.monotonic() > deadline:
                raise TimeoutError
        self._check_cpu()
        try:
            message = receive_message(self._replies, self._job.segment_bytes + _OVERHEAD)
            reply = pb.PullReply.FromString(message)
        except (ValueError, DecodeError):
            raise PullError("the process that reads the camera sent a reply that cannot be read") from None
        if reply.WhichOneof("outcome") is None:
            raise PullError("the process that reads the camera sent an empty reply")
        if reply.HasField("failure"):
            raise PullError(clean(reply.failure.error, _TEXT))
        return reply

    def _segment(self, segment: pb.PulledSegment) -> CutSegment:
        times = (segment.seconds, segment.waited_s)
        if not (
            all(math.isfinite(time_s) and 0 <= time_s <= _LONGEST_S for time_s in times) and segment.data
        ):
            raise PullError("the process that reads the camera sent an invalid segment")
        self.dropped_packets = segment.dropped_packets
        return CutSegment(segment.data, *times)

    def _check_cpu(self) -> None:
        used = cpu_seconds(self.pid)
        if used is not None and used > _CPU_S + _CPU_SHARE * (time.monotonic() - self._begun):
            self.end()
            raise PullError(
                "reading the stream takes more than half a CPU core: lower the camera's bit "
                "rate or frame rate"
            )

    def _fate(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return "does not answer"
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
