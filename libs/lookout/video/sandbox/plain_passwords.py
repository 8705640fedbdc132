"""Prevents FFmpeg from sending a password in clear text to a camera, on the connection that streams.

FFmpeg answers the latest challenge, and a camera may ask for Digest once and for Basic the next time. So
FFmpeg's requests pass through a check in the confined process, one by one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable

REFUSED = (
    "the camera takes the password in the clear only (Basic): use rtsps://, or allow it with "
    "LOOKOUT_BASIC_AUTH=true"
)
_PIECE = 1 << 18
_REQUEST_BYTES = 1 << 16
_BASIC = re.compile(rb"(?im)^authorization\s*:\s*basic\b")
_INTERLEAVED = 0x24  # "$", a channel and a length of two bytes come before a packet (RFC 2326, section 10.12)


def guard_input(refuse: Callable[[], None]) -> Callable[[], None]:
    """Put a check between this process's standard input, a connection to a camera, and the camera.

    Args:
        refuse: Called instead of sending the first request that has the password in clear text.

    Returns:
        A function that starts the check's own threads, for later: a process must have one thread while it
        is being confined.
    """
    camera = socket.socket(fileno=os.dup(0))
    camera.setblocking(True)  # the connection was made with a time limit; from here FFmpeg's own applies
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
    with contextlib.suppress(OSError):  # one side has closed; FFmpeg reports the error
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
        OSError: The bytes are longer than any request, but none of them completes one.
    """
    if len(data) > _REQUEST_BYTES:
        raise OSError("a request has no end")
    if data[:1] == b"$":
        length = 4 + int.from_bytes(data[2:4], "big")
        return length if len(data) >= max(4, length) else None
    end = data.find(b"\r\n\r\n")
    return None if end < 0 else end + 4
