"""Serves a remote recording to a process without network access. The process requests ranges from the pool
through a socket, and the pool reads them on its behalf.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from lookout.video.files.source import PositionReader
from lookout.video.sandbox.exchange import receive_message, send_message
from lookout.video.segments.types import CodecError, Reason

LONGEST = 1 << 20
"""Maximum bytes in one answer."""
ANSWER_S = 60.0
"""Seconds within which the process must read an answer."""
_RANGE = struct.Struct("<QI")  # offset and size; size 0 asks for the recording's size


class ServedSource(Protocol):
    """A recording that can be served to a process."""

    @property
    def name(self) -> str:
        """Name in messages."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def read_at(self, size: int, offset: int) -> bytes:
        """Read at most `size` bytes from an offset; empty at the end."""


@contextmanager
def served(source: ServedSource) -> Iterator[int]:
    """Serve a source for one job; yield the descriptor through which the process reads it.

    Raises:
        Exception: An exception of the source, which replaces the job's outcome.
    """
    ours, theirs = socket.socketpair()
    failures: list[Exception] = []
    thread = threading.Thread(
        target=_serve, args=(ours, source, failures.append), name="recording", daemon=True
    )
    thread.start()
    try:
        with theirs:
            yield theirs.fileno()
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    finally:
        with suppress(OSError):  # the thread closes it, perhaps before this
            ours.shutdown(socket.SHUT_RDWR)
    if failures:
        raise failures[0]


def _serve(channel: socket.socket, source: ServedSource, failed: Callable[[Exception], None]) -> None:
    with channel:
        while True:
            try:
                offset, size = _RANGE.unpack(receive_message(channel.fileno(), _RANGE.size))
            except (EOFError, OSError, ValueError, struct.error):
                return  # the job is over
            try:
                data = (
                    source.read_at(min(size, LONGEST), offset) if size else source.size.to_bytes(8, "little")
                )
            except Exception as error:
                failed(error)
                return
            try:
                send_message(channel.fileno(), data, ANSWER_S)
            except OSError:
                return


class ServedFile(PositionReader):
    """The process's side: a seekable file over the socket.

    Args:
        channel: Descriptor of the socket; closed with the file.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        super().__init__(self._range, int.from_bytes(self._range(0, 0), "little"))

    def close(self) -> None:
        """Close the socket."""
        if not self.closed:
            os.close(self._channel)
        super().close()

    def _range(self, size: int, offset: int) -> bytes:
        try:
            send_message(self._channel, _RANGE.pack(offset, size))
            return receive_message(self._channel, LONGEST)
        except (EOFError, OSError):
            raise CodecError(Reason.UNREADABLE, "the recording can no longer be read") from None
