"""An allow-list for libraries that open their own connections, enforced where they resolve names.

Apprise, paho and similar libraries call `socket.create_connection`, which resolves and connects in one step.
Under a guard, a look-up answers only if the host and all of its addresses are allowed. So the connection goes
to an address that was checked, even after a redirect, whatever DNS says later.

Libraries deliver on their own threads. `guard_process` therefore covers all threads of a process, and code
that checks its addresses itself opts out with `unguarded`.
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
    """Let every thread of this process resolve allowed hosts only.

    Args:
        allowed: The allowed hosts and networks.
    """
    _process[:] = [allowed]
    socket.getaddrinfo = _guarded_resolve


@contextmanager
def guarded(allowed: UriFetcher) -> Iterator[None]:
    """Let this context resolve allowed hosts only.

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
    """Let this context resolve every host, because it checks its addresses itself."""
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
        # Libraries handle a name that does not resolve: they report it and do not connect.
        raise socket.gaierror(socket.EAI_FAIL, error.detail) from error
    return answers
