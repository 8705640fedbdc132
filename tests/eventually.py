"""Waiting for what another thread, process or machine will do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(what: Callable[[], object], seconds: float = 240.0, every: float = 0.02) -> Any:
    """The first true answer of `what`; fails after `seconds`: a bound against hanging, not a measurement.

    On a machine that has no time for it Kafka alone takes a minute to come back.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(every)
    cells = [cell.cell_contents for cell in getattr(what, "__closure__", None) or ()]
    raise AssertionError(f"never came true: {what}, with {cells!r:.500}")
