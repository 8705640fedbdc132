"""Prevents FFmpeg from sending a camera's password in clear text on the streaming connection.

A camera may first ask for Digest and later for Basic, and FFmpeg answers whatever was asked last. So each of
FFmpeg's requests passes through a check in the confined process.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable

REFUSED = (
    "the camera accepts the password in clear text only (Basic): use rtsps://, or allow it with "
    "LOOKOUT_BASIC_AUTH=true"
)
_PIECE = 1 << 18
_REQUEST_BYTES = 1 << 16
_BASIC = re.compile(rb"(?im)^authorization\s*:\s*basic\b")
_INTERLEAVED = 0x24  # "$", channel, two bytes of length, packet (RFC 2326, 10.12)


def guard_input(refuse: Callable[[], None]) -> Callable[[], None]:
    """Put a check between FFmpeg and the camera's connection, which is this process's standard input.

    Args:
        refuse: Called instead of sending the first request that has the password in clear text.

    Returns:
        A function that starts the check's threads. Call it during confinement, which must begin with only one
        thread.
    """
    camera = socket.socket(fileno=os.dup(0))
    camera.setblocking(True)  # the connection's time limit ends here, because FFmpeg has its own
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), 0)
    theirs.close()
    threads: dict[str, Callable[[], None]] = {
        "from-camera": lambda: _copy(camera, ours),
        "to-camera": lambda: _copy_requests(ours, camera, refuse),
    }

    def start() -> None:
        for name, target in threads.items():
            arguments = (target, ours, camera)
            threading.Thread(target=_until_closed, args=arguments, name=name, daemon=True).start()

    return start


def _until_closed(target: Callable[[], None], *ends: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one side has closed the connection; FFmpeg reports this
        target()
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(_PIECE):
        sink.sendall(data)


def _copy_requests(source: socket.socket, sink: socket.socket, refuse: Callable[[], None]) -> None:
    waiting = b""
    while data := source.recv(_PIECE):
        waiting += data
        while (length := _whole(waiting)) is not None:
            request, waiting = waiting[:length], waiting[length:]
            if request[0] != _INTERLEAVED and _BASIC.search(request):
                refuse()
                return
            sink.sendall(request)


def _whole(data: bytes) -> int | None:
    """Return the length in bytes of the first request or packet; None if it is incomplete.

    Raises:
        OSError: The request is incomplete, although the bytes are longer than any request.
    """
    if len(data) > _REQUEST_BYTES:
        raise OSError("a request has no end")
    if data[:1] == b"$":
        length = 4 + int.from_bytes(data[2:4], "big")
        return length if len(data) >= max(4, length) else None
    end = data.find(b"\r\n\r\n")
    return None if end < 0 else end + 4
