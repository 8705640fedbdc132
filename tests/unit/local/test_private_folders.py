"""What a local fleet and the tensor stores write is footage: only its owner may read it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lookout.local.fleet import Fleet
from lookout.local.processes import Child, LocalError
from lookout.local.redis import RedisServer
from lookout.runtime.store.spool import Spool


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_that_a_fleet_makes_is_its_owners_alone(tmp_path: Path) -> None:
    Fleet(tmp_path / "fleet" / "data")
    RedisServer(tmp_path / "servers" / "redis")
    Spool(tmp_path / "tensors" / "decode")
    for folder in ("fleet", "fleet/data", "servers", "servers/redis", "tensors", "tensors/decode"):
        assert _mode(tmp_path / folder) == 0o700, folder


def test_a_folder_that_exists_keeps_its_mode_and_its_logs_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    child = Child([sys.executable, "-c", ""], folder / "child.log")
    child.stop()
    assert _mode(folder) == 0o755
    assert _mode(folder / "child.log") == 0o600


@pytest.mark.parametrize("name", ["kafka", "logs/decode-0.log", "kafka/server.properties", "grpc-token"])
def test_nothing_outside_of_a_prepared_folder_is_written(tmp_path: Path, name: str) -> None:
    """Whoever may write where `--data` points could name a file of its user by a link."""
    data, victim = tmp_path / "data", tmp_path / "victim"
    (data / name).parent.mkdir(parents=True)
    victim.mkdir()
    (data / name).symlink_to(victim)
    with pytest.raises(LocalError, match=f"{name} is a link"):
        Fleet(data, stages=()).start()
    assert list(victim.iterdir()) == []


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "child.log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        Child([sys.executable, "-c", ""], tmp_path / "child.log")
    assert not (tmp_path / "victim").exists()
