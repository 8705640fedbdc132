"""An allow-list for libraries that open connections themselves: it stands where they resolve names.

Apprise, paho and their like call `socket.create_connection`, which resolves and connects in one step. Where a
guard holds, look-ups answer only for hosts that are allowed, and only if all of their addresses are: the
connection goes to an address that was checked, also after a redirect, whatever DNS says later.

Libraries deliver on threads of their own. `guard_process` therefore holds for all threads of a process, and
what checks its addresses itself says so with `unguarded`.
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
_process: list[UriFetcher] = []  # the guard of all threads, if there is one
#: the guard of a context; one entry without a guard: it checks by itself
_context: ContextVar[tuple[UriFetcher | None] | None] = ContextVar("guard", default=None)


def guard_process(allowed: UriFetcher) -> None:
    """Let every thread of this process resolve allowed hosts alone.

    Args:
        allowed: Which hosts and networks are.
    """
    _process[:] = [allowed]
    socket.getaddrinfo = _guarded_resolve


@contextmanager
def guarded(allowed: UriFetcher) -> Iterator[None]:
    """Let this context resolve allowed hosts alone.

    Args:
        allowed: Which hosts and networks are.
    """
    socket.getaddrinfo = _guarded_resolve
    token = _context.set((allowed,))
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def unguarded() -> Iterator[None]:
    """Let this context resolve every host: it checks where it connects to."""
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
        # What libraries expect of a name that does not resolve: they report it, and connect nowhere.
        raise socket.gaierror(socket.EAI_FAIL, error.detail) from error
    return answers
