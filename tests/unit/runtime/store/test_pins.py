"""What waits to be read: who pauses, how much one camera may have waiting, and what a turn costs."""

from __future__ import annotations

import pytest

from lookout.runtime.store import CameraQuotaError, Unread
from lookout.runtime.store.labels import Label
from lookout.runtime.store.pins import Pins
from tests.unit.runtime.store.store_case import ref


def label(name: str, length: int = 1000) -> Label:
    return Label(name, f"entry/{name}", "uint8", (length,), length, 0)


def pins(**limits: float) -> Pins:
    given = {"unread_bytes": 1 << 20, "unread_seconds": 100.0, "camera_bytes": 1 << 20}
    return Pins(**{**given, **limits})  # type: ignore[arg-type]


def test_bytes_pause_the_crowded_partition_until_three_quarters() -> None:
    waiting = pins(unread_bytes=8000)
    waiting.add(label("small"), "cam", Unread(1))
    for n in range(7):
        assert waiting.pressure().paused == frozenset()
        waiting.add(label(f"a{n}"), "cam", Unread(0))
        waiting.published([ref(f"a{n}")], 0, n)
    assert waiting.pressure().paused == {0}
    assert waiting.consumed(0, 1) == ["a0"]
    assert waiting.pressure().paused == {0}
    waiting.consumed(0, 3)
    assert waiting.pressure().paused == frozenset()


def test_seconds_pause_by_camera() -> None:
    waiting = pins(unread_seconds=10.0)
    for n in range(4):
        waiting.add(label(f"a{n}"), f"cam{n}", Unread(0, 9.0))
    assert waiting.pressure().paused == frozenset()
    waiting.add(label("b"), "cam0", Unread(0, 2.0))
    assert waiting.pressure().paused == {0}
    assert waiting.pressure().unread_seconds == 11.0


def test_one_camera_cannot_fill_the_store() -> None:
    waiting = pins(camera_bytes=10_000)
    for name in ("a0", "a1"):
        waiting.check("a", label(name, 4000))
        waiting.add(label(name, 4000), "a", Unread(0))
    with pytest.raises(CameraQuotaError, match="8000 bytes of camera a are unread"):
        waiting.check("a", label("a2", 4000))
    waiting.check("b", label("b", 4000))
    waiting.check("a", label("a1", 4000))  # waits already
    waiting.release([ref("a0")])
    waiting.check("a", label("a2", 4000))
    assert waiting.bytes_of("a") == 4000
    waiting.check("c", label("large", 20_000))  # a tensor alone is never too large


def test_what_ends_is_told_once() -> None:
    waiting = pins()
    for n, camera in enumerate("aabb"):
        waiting.add(label(f"t{n}"), camera, Unread(n % 2))
    waiting.published([ref("t0"), ref("t1")], 0, 5)
    assert waiting.consumed(0, 5) == []
    assert sorted(waiting.consumed(0, 6)) == ["t0", "t1"]  # a record says which partition it went to
    assert waiting.consumed(0, 6) == []
    assert waiting.release([ref("t0"), ref("t2")]) == ["t2"]
    waiting.add(label("t4"), "b", Unread(1))
    waiting.forget("t3")
    assert waiting.release_camera("b") == ["t4"]
    assert waiting.release_partition(1) == []
    assert waiting.pressure().unread_bytes == 0


def test_pressure_is_read_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = pins()
    waiting.add(label("a"), "cam", Unread(0))
    first = waiting.pressure()
    assert waiting.pressure() is first
    waiting.consumed(0, 9)
    assert waiting.pressure() is first
    waiting.release([ref("a")])
    assert waiting.pressure().unread_bytes == 0
