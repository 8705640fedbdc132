"""An allow-list for libraries that open their own connections, enforced where they resolve names.

Apprise, paho and similar libraries call `socket.create_connection`, which resolves and connects in one step.
Under a guard, a lookup succeeds only if the host and all of its addresses are allowed. So every connection
goes to a checked address, even after a redirect, whatever DNS says later.

Libraries connect on their own threads, so `guard_process` covers all threads of a process. Code that checks
its addresses itself opts out with `unguarded`.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lookout.errors import BadRecordError
from lookout.runtime.net.fetch import UriFetcher

_resolve = socket.getaddrinfo
_process: list[UriFetcher] = []  # the guard of all threads, if any
#: the guard of a context; a tuple of None: the context opted out
_context: ContextVar[tuple[UriFetcher | None] | None] = ContextVar("guard", default=None)


def guard_process(allowed: UriFetcher) -> None:
    """From now on, let every thread of this process resolve only allowed hosts.

    Args:
        allowed: The allowed hosts and networks.
    """
    _process[:] = [allowed]
    socket.getaddrinfo = _guarded_resolve


@contextmanager
def guarded(allowed: UriFetcher) -> Iterator[None]:
    """Let this context resolve only allowed hosts within the block.

    Args:
        allowed: The allowed hosts and networks.
    """
    socket.getaddrinfo = _guarded_resolve
    token = _context.set((allowed,))
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def unguarded() -> Iterator[None]:
    """Let this context resolve every host within the block, because the caller checks its addresses."""
    token = _context.set((None,))
    try:
        yield
    finally:
        _context.reset(token)


@functools.wraps(_resolve)
def _guarded_resolve(host: Any, *arguments: Any, **more: Any) -> Any:
    own = _context.get()
    allowed = own[0] if own is not None else next(iter(_process), None)
    if allowed is None:
        return _resolve(host, *arguments, **more)
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    try:
        allowed.check_host(name.rstrip("."))
        answers = _resolve(host, *arguments, **more)
        allowed.check_addresses(name, [str(answer[4][0]) for answer in answers])
    except BadRecordError as error:
        # Reported as a name that does not resolve, because libraries handle that error and do not connect.
        raise socket.gaierror(socket.EAI_FAIL, error.detail) from error
    return answers
