"""What a cluster needs of its machine is checked before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import tools


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    monkeypatch.setattr(tools, "BIN", tmp_path / "bin")
    monkeypatch.setattr(tools, "_stamp", lambda name: "")
    monkeypatch.setattr("os.geteuid", lambda: 0)


@pytest.mark.usefixtures("nothing_is_built")
def test_cgroups_of_another_version_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(tools.ToolError, match="needs cgroup version 1"):
        tools.check_host(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_is_built")
def test_one_line_says_what_will_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    programs = {"go": "/usr/bin/go", "apt-get": "/usr/bin/apt-get"}
    monkeypatch.setattr("shutil.which", lambda command, path=None: programs.get(command))
    tools.check_host(tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("to be installed: Debian packages with apt-get, on this machine: buildah ")
    assert f"Go programs into {tmp_path / 'bin'}: containerd " in line
    assert line.endswith(" kube")
    del programs["go"]
    with pytest.raises(tools.ToolError, match="install Go"):
        tools.check_host(tmp_path)


@pytest.mark.usefixtures("nothing_is_built")
def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(tools.ToolError, match="run as root"):
        tools.build_all()
