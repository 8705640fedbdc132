"""A cache folder that several users share: what another user put there is neither believed nor run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from lookout.local.addresses import FleetAddress, announcement, announcements, running_fleets
from lookout.local.java import Java
from lookout.local.processes import hold, release
from lookout.local.startup_cache import startup_cache

ADDRESS = FleetAddress("127.0.0.1:1", "redis://127.0.0.1:2/0", "/fleet", 3, {}, {})
NOBODY = 65534


@pytest.fixture(params=["of another user", "writable by others", "a link"])
def spoil(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Makes a file one that somebody else could have written."""

    def do(path: Path) -> None:
        if request.param == "writable by others":
            path.chmod(0o666)
        elif request.param == "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        elif os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        else:
            pytest.skip("only root can give a file away")

    return do


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LOOKOUT_CACHE", str(folder))
    announcements().mkdir(parents=True)
    return folder


def test_a_fleet_that_another_user_announces_is_none(cache: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    before = os.umask(0o002)  # as several distributions have it
    try:
        hold(announcement(), json.dumps(asdict(ADDRESS)))
    finally:
        os.umask(before)
    try:
        assert running_fleets() == [ADDRESS]
        spoil(announcement())
        assert running_fleets() == []
    finally:
        release(announcement())


def test_a_startup_cache_that_another_user_wrote_is_not_run(cache: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    java = Java(Path("/usr/bin/java"), 25)
    path = cache / "kafka-java-25.aot"
    path.write_bytes(b"code")
    path.chmod(0o600)
    assert startup_cache(java) == path
    spoil(path)
    assert startup_cache(java) is None
