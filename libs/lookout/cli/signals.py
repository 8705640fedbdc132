"""Signals that end a command: Ctrl-C, a closed terminal, `kill`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the `with` block as Ctrl-C does; further signals are ignored while the block
    cleans up.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        for another in _ASKING:
            signal.signal(another, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in _ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
