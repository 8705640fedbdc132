"""Java's cache for the broker's start: whole or absent, written once, for Java 25 and newer."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.local import startup_cache as room
from lookout.local.java import Java
from lookout.local.startup_cache import startup_cache, write_startup_cache

NEW, OLD = Java(Path("java"), 25), Java(Path("java"), 21)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(room, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def write(options: list[str]) -> None:
    (option,) = options
    Path(option.removeprefix("-XX:AOTCacheOutput=")).write_bytes(b"classes")


def test_the_cache_is_written_once() -> None:
    assert startup_cache(NEW) is None
    path = write_startup_cache(NEW, write)
    assert path is not None
    assert path.read_bytes() == b"classes"
    assert startup_cache(NEW) == path
    assert write_startup_cache(NEW, lambda _: pytest.fail("it is there")) == path


def test_a_broker_that_dies_while_it_writes_leaves_none(cache: Path) -> None:
    def die(options: list[str]) -> None:
        write(options)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_startup_cache(NEW, die)
    assert startup_cache(NEW) is None
    assert [path.suffix for path in cache.iterdir()] == [".filelock"]
    assert write_startup_cache(NEW, lambda _: None) is None


def test_an_older_java_has_none() -> None:
    assert write_startup_cache(OLD, lambda _: pytest.fail("no such option")) is None
    assert startup_cache(OLD) is None
