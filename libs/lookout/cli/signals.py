"""Ends that are asked for: Ctrl-C, a closed terminal, `kill`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_quietly() -> Iterator[None]:
    """SIGTERM and a hang-up end the block as Ctrl-C does; while it tidies up, further ones are ignored."""

    def ask(number: int, frame: FrameType | None) -> None:
        for each in _ASKING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, ask) for each in _ASKING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
