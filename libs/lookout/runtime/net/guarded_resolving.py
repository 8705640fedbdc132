"""An allow-list for libraries that open connections themselves: it stands where they resolve names.

Apprise, paho and their like call `socket.create_connection`, which resolves and connects in one step. Within
`guarded` this thread's look-ups answer only for hosts that are allowed, and only if all of their addresses
are: the connection goes to an address that was checked, also after a redirect, whatever DNS says later.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lookout.errors import BadRecordError
from lookout.runtime.net.fetch import UriFetcher


class _Guards(threading.local):
    allowed: UriFetcher | None = None


_guards = _Guards()
_lock = threading.Lock()
_resolve = socket.getaddrinfo


@contextmanager
def guarded(allowed: UriFetcher) -> Iterator[None]:
    """Let this thread resolve allowed hosts alone.

    Args:
        allowed: Which hosts and networks are.
    """
    with _lock:
        if socket.getaddrinfo is not _guarded_resolve:
            socket.getaddrinfo = _guarded_resolve
    before, _guards.allowed = _guards.allowed, allowed
    try:
        yield
    finally:
        _guards.allowed = before


@functools.wraps(_resolve)
def _guarded_resolve(host: Any, *arguments: Any, **more: Any) -> Any:
    allowed = _guards.allowed
    if allowed is None:
        return _resolve(host, *arguments, **more)
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    try:
        allowed.check_host(name.rstrip("."))
        answers = _resolve(host, *arguments, **more)
        allowed.check_addresses(name, [str(answer[4][0]) for answer in answers])
    except BadRecordError as error:
        # What libraries expect of a name that does not resolve: they report it, and connect nowhere.
        raise socket.gaierror(socket.EAI_FAIL, error.detail) from error
    return answers
