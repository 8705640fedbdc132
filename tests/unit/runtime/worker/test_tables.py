"""Rows that cannot be used, in a table that is followed; what Kafka has to do with it is in tests/fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lookout.runtime.observe import logs
from lookout.runtime.observe.limited_log import LINES
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.tables import Table


@dataclass(frozen=True)
class FakeMessage:
    """A fake of a record as the Kafka client gives it."""

    number: int
    text: bytes

    def key(self) -> bytes:
        return b"key-%d" % (self.number % 40)

    def value(self) -> bytes:
        return self.text

    def offset(self) -> int:
        return self.number

    def partition(self) -> int:
        return 0


def fault(key: str, value: bytes) -> str | None:
    return None if value == b"good" else f"{value!r} is not good"


def test_a_thousand_bad_rows_of_few_keys_are_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("toy", "one")
    table: Any = Table(ServiceSettings(mode="local", instance="one"), "watches.v1", check=fault)
    table._read_once = True  # what stood in the topic at the start is told in one line
    for number in range(40):
        table._put(FakeMessage(number, b"good"))
    for number in range(1000):
        table._put(FakeMessage(number, b"\x1b[2J"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == LINES
    assert not any("\x1b" in line for line in lines)
    assert table.left_out().rows == 40
    assert table.newest("key-1") == b"good"


def test_changes_are_told_once_deleted_rows_too() -> None:
    table: Any = Table(ServiceSettings(mode="local", instance="one"), "watches.v1", check=fault)
    for number in range(3):
        table._put(FakeMessage(number, b"good"))
    assert table.changes() == {"key-0", "key-1", "key-2"}
    assert table.changes() == set()
    table._put(FakeMessage(41, b"good"))
    deletion: Any = FakeMessage(2, None)  # type: ignore[arg-type]
    table._put(deletion)
    assert table.changes() == {"key-1", "key-2"}
    assert table.newest("key-2") is None
