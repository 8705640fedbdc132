"""Exchanges bytes between a decoder pool and its processes: short messages through pipes, large planes
through anonymous shared files.

`sandbox.proto` defines the messages; `reply_reader` validates those that come from a decoder.
"""

from __future__ import annotations

import os
import select
import struct
import tempfile
import time
from collections.abc import Callable

_LENGTH = struct.Struct("<I")
_PIPE_BYTES = 1 << 16
_BODY_S = 30.0
"""Seconds within which a message must be complete once its first bytes have arrived."""
#: kinds of inputs sent with a job: a file, a pipe, a recording that the parent serves
REGULAR, STREAM, SERVED = b"f", b"p", b"s"
_WATCH_S = 0.1
"""Seconds between calls of a watch."""

Watch = Callable[[], None]


def shared_file() -> int:
    """Create a nameless file that both processes can map, and return its descriptor. The file is gone once
    its last descriptor is closed.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lookout-codec", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send_message(fd: int, data: bytes, seconds: float | None = None) -> None:
    """Send a message through a pipe.

    Args:
        fd: The pipe.
        data: The message.
        seconds: Time within which the other side must read the message; None: no limit. A limit needs a
            non-blocking pipe.

    Raises:
        TimeoutError: The limit expired.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        _await(fd, select.POLLOUT, deadline)
        # A pipe holds 64 KiB by default (pipe(7)); a larger write would only return later.
        view = view[os.write(fd, view[:_PIPE_BYTES]) :]


def receive_message(fd: int, limit: int, seconds: float | None = None, watch: Watch | None = None) -> bytes:
    """Receive a message from a pipe.

    Args:
        fd: The pipe.
        limit: Maximum bytes of the message.
        seconds: Time limit for the message; None: no limit. Once a message has begun, it must be complete
            within 30 s.
        watch: Called repeatedly while waiting; an exception from it ends the wait.

    Raises:
        EOFError: The other side closed the pipe.
        TimeoutError: A limit expired.
        ValueError: The message is longer than `limit`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    _await(fd, select.POLLIN, deadline, watch)
    whole_by = time.monotonic() + _BODY_S
    deadline = whole_by if deadline is None else min(deadline, whole_by)
    (length,) = _LENGTH.unpack(_receive(fd, _LENGTH.size, deadline, watch))
    if length > limit:
        raise ValueError(f"the message has {length} bytes; the limit is {limit}")
    return _receive(fd, length, deadline, watch)


def _receive(fd: int, size: int, deadline: float, watch: Watch | None) -> bytes:
    parts: list[bytes] = []
    while size:
        _await(fd, select.POLLIN, deadline, watch)
        part = os.read(fd, min(size, _PIPE_BYTES))
        if not part:
            raise EOFError("the other process has closed the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _await(fd: int, event: int, deadline: float | None, watch: Watch | None = None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    while True:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = remaining if watch is None else min(_WATCH_S, _WATCH_S if remaining is None else remaining)
        if poll.poll(None if pause is None else pause * 1000):
            return
        if watch is not None:
            watch()
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("the other process did not answer in time")


def write_all(fd: int, data: bytes | memoryview, offset: int = 0) -> None:
    """Write all of `data` at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def read_all(fd: int, size: int, offset: int = 0) -> bytearray:
    """Read exactly `size` bytes.

    Raises:
        EOFError: The file ends too early.
    """
    # Not fstat, which may use a path, because decoders may not.
    if not 0 <= size <= os.lseek(fd, 0, os.SEEK_END) - offset:
        raise EOFError(f"the other process announced {size} bytes but did not write them")
    out = bytearray(size)
    view, position = memoryview(out), 0
    while position < size:
        count = os.preadv(fd, [view[position:]], offset + position)
        if count == 0:
            raise EOFError(f"the other process removed {size - position} bytes")
        position += count
    return out
