"""A data folder of Kafka is prepared by Kafka's tool once on a machine, and without Java from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.local import formatting as room
from lookout.local.formatting import META, format_data


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(room, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def prepared(data: Path) -> list[str]:
    """Prepare a folder; the clusters for which the tool ran."""
    clusters: list[str] = []

    def run(cluster: str) -> None:
        clusters.append(cluster)
        data.mkdir()
        (data / "bootstrap.checkpoint").write_bytes(b"features")
        (data / META).write_text(f"cluster.id={cluster}\nnode.id=1\nversion=1\n")

    format_data(data, "1", run)
    return clusters


def facts(data: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (data / META).read_text().splitlines())


def test_the_tool_runs_once_and_every_folder_is_its_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    assert [len(prepared(data)) for data in folders] == [1, 0, 0]
    assert all((data / "bootstrap.checkpoint").read_bytes() == b"features" for data in folders)
    _, second, third = map(facts, folders)
    assert set(second) == {"version", "cluster.id", "node.id", "directory.id"}
    assert second["cluster.id"] != third["cluster.id"]
    assert second["directory.id"] != third["directory.id"]
    assert len(second["cluster.id"]) == len(second["directory.id"]) == 22


def test_a_tool_that_fails_leaves_nothing_for_the_next(tmp_path: Path, cache: Path) -> None:
    def fail(cluster: str) -> None:
        raise OSError("no Java")

    with pytest.raises(OSError, match="no Java"):
        format_data(tmp_path / "a", "1", fail)
    assert not cache.exists()
    assert len(prepared(tmp_path / "b")) == 1


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, cache: Path) -> None:
    cache.touch()  # no folder can be made there, by nobody
    assert [len(prepared(tmp_path / name)) for name in "ab"] == [1, 1]


def test_what_another_user_may_have_written_is_not_read(tmp_path: Path, cache: Path) -> None:
    prepared(tmp_path / "a")
    (cached,) = cache.iterdir()
    cached.chmod(0o666)
    assert len(prepared(tmp_path / "b")) == 1
    assert len(prepared(tmp_path / "c")) == 0
