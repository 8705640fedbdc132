"""A stranger's thousand bad records give ten lines, and one that counts the rest."""

from __future__ import annotations

from typing import Any

import pytest

from lookout.runtime.observe.limited_log import INTERVAL_S, LINES, SUBJECTS, LimitedLog


class MemoryLog:
    """A fake of a logger: keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append({"event": event, **facts})

    error = warning


def test_lines_are_limited_and_counted() -> None:
    log, now = MemoryLog(), [0.0]
    limited = LimitedLog(log, lambda: now[0])
    for _ in range(1000):
        limited.warning("gate", "dead letter", detail="\x1b[2J" + "x" * 100_000)
    assert len(log.lines) == LINES
    assert "\x1b" not in log.lines[0]["detail"]
    assert len(log.lines[0]["detail"]) < 1300
    now[0] = INTERVAL_S
    limited.warning("gate", "dead letter", detail="")
    assert log.lines[-1]["left_out_before"] == str(1000 - LINES)


@pytest.mark.slow
def test_invented_subjects_take_no_memory() -> None:
    log = MemoryLog()
    limited = LimitedLog(log, lambda: 0.0)
    for number in range(10 * SUBJECTS):
        limited.warning(number, "dead letter")
    assert len(log.lines) == SUBJECTS + LINES
