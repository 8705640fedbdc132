"""How a sandbox pool and its workers hand over objects: small facts by pipe, large
arrays by anonymous shared files.

The parent never unpickles freely what a worker sends: a worker that hostile bytes have taken over must not
gain more than the wrong answer."""

from __future__ import annotations

import io
import json
import os
import pickle
import select
import struct
import tempfile
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from lookout.codec import types

_LENGTH = struct.Struct("<I")
_PIPE_BYTES = 1 << 16
_RECORDS = (
    types.Basis,
    types.DecodedSegment,
    types.FrameInfo,
    types.Motion,
    types.Picture,
    types.SampledFrame,
    types.Segment,
    types.SegmentFacts,
)
_NUMPY = ("numpy._core", "numpy.core")
RESULT_CLASSES = frozenset(
    [(each.__module__, each.__name__) for each in _RECORDS]
    + [("lookout.codec.geometry", "Geometry"), ("lookout.codec.inspection", "Inspection")]
    + [("lookout.codec.recording_jobs", name) for name in ("TableResult", "SampleResult")]
    + [("lookout.codec.parallel", "FileFrame"), ("lookout.codec.parallel", "Work")]
    + [("lookout.codec.recording", "RecordingFacts"), ("lookout.codec.table", "FrameTable")]
    + [("fractions", "Fraction"), ("numpy", "dtype"), ("numpy", "ndarray")]
    + [(f"{core}.numeric", "_frombuffer") for core in _NUMPY]
    + [(f"{core}.multiarray", "_reconstruct") for core in _NUMPY]
)


class _ResultPickler(pickle.Pickler):
    """Enumerations go by value: Python up to 3.11.3 names them through `getattr`, which nobody may send."""

    def reducer_override(self, obj: Any) -> Any:
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _ResultUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in RESULT_CLASSES:
            raise pickle.UnpicklingError(
                f"a decoder worker sent {module}.{name}, which is not allowed in a result"
            )
        return super().find_class(module, name)


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer to one job: `status` is ready, done, error (a CodecError) or broken (a bug)."""

    status: str
    detail: str = ""
    reason: str = ""
    size: int = 0  # bytes of the pickle at the start of the shared file
    buffers: tuple[int, ...] = ()  # bytes of the arrays that follow it

    def encode(self) -> bytes:
        """As one JSON message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """From one JSON message."""
        fields = json.loads(message)
        return cls(**{**fields, "buffers": tuple(fields["buffers"])})


def shared_file() -> int:
    """A nameless file both processes can map; it vanishes with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lookout-codec", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send_message(fd: int, data: bytes, seconds: float | None = None) -> None:
    """Send a message through a pipe.

    Args:
        seconds: how long the other side may take to read it; unset: for ever. Needs a non-blocking pipe.

    Raises:
        TimeoutError: it took longer.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        _await(fd, select.POLLOUT, deadline)
        view = view[os.write(fd, view[:_PIPE_BYTES]) :]


def receive_message(fd: int, limit: int, seconds: float | None = None) -> bytes:
    """Receive a message from a pipe.

    Args:
        limit: the longest that is accepted, bytes.
        seconds: how long the whole of it may take; unset: for ever.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: it took longer.
        ValueError: it is longer than the limit.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_receive(fd, _LENGTH.size, deadline))
    if length > limit:
        raise ValueError(f"a message of {length} bytes; {limit} are allowed")
    return _receive(fd, length, deadline)


def _receive(fd: int, size: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        _await(fd, select.POLLIN, deadline)
        part = os.read(fd, min(size, _PIPE_BYTES))
        if not part:
            raise EOFError("the other process has closed the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _await(fd: int, what: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, what)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise TimeoutError("the other process did not answer in time")


def write_all(fd: int, data: bytes | memoryview, offset: int = 0) -> None:
    """Write the whole of `data` at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def read_all(fd: int, size: int, offset: int = 0) -> bytearray:
    """Read exactly `size` bytes.

    Raises:
        EOFError: The data ends too early.
    """
    if not 0 <= size <= os.fstat(fd).st_size - offset:
        raise EOFError(f"a decoder worker announced {size} bytes but did not write them")
    out = bytearray(size)
    view, done = memoryview(out), 0
    while done < size:
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            raise EOFError(f"a decoder worker removed {size - done} bytes")
        done += got
    return out


def store_result(fd: int, result: object) -> Reply:
    """Put an object into the shared file, arrays as they are."""
    buffers: list[pickle.PickleBuffer] = []
    packed = io.BytesIO()
    _ResultPickler(packed, protocol=5, buffer_callback=buffers.append).dump(result)
    body = packed.getvalue()
    os.ftruncate(fd, 0)
    write_all(fd, body)
    offset, sizes = len(body), []
    for buffer in buffers:
        raw = buffer.raw()
        write_all(fd, raw, offset)
        sizes.append(raw.nbytes)
        offset += raw.nbytes
    return Reply("done", size=len(body), buffers=tuple(sizes))


def load_result(fd: int, reply: Reply, limit: int | None = None) -> object:
    """Take an object out of the shared file; its arrays are the caller's own.

    Raises:
        pickle.UnpicklingError: It cannot be read.
        ValueError: It has more than `limit` bytes.
    """
    if limit is not None and reply.size + sum(reply.buffers) > limit:
        raise ValueError(f"{reply.size + sum(reply.buffers)} bytes; {limit} are allowed")
    body = read_all(fd, reply.size)
    buffers, offset = [], reply.size
    for size in reply.buffers:
        buffers.append(read_all(fd, size, offset))
        offset += size
    return _ResultUnpickler(io.BytesIO(body), buffers=buffers).load()
