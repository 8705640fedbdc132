"""What a cluster needs of its machine is checked before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rtsp_camera
from tests.cluster import tools
from tests.cluster.steps import STEPS


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    monkeypatch.setattr(tools, "BIN", tmp_path / "bin")
    monkeypatch.setattr(tools, "_stamp", lambda name: "")
    monkeypatch.setattr("os.geteuid", lambda: 0)


@pytest.mark.usefixtures("nothing_is_built")
def test_a_machine_without_control_groups_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(tools.ToolError, match="neither version has cpu, memory, pids"):
        tools.check_host(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    with pytest.raises(tools.ToolError, match=r"neither version has memory$"):
        tools.check_host(tmp_path)


@pytest.mark.usefixtures("nothing_is_built")
def test_control_groups_of_version_two_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    monkeypatch.setattr("shutil.which", lambda command, path=None: f"/usr/bin/{command}")
    tools.check_host(tmp_path)


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
def test_what_steps_build_is_said_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr("shutil.which", lambda command, path=None: f"/usr/bin/{command}")
    tools.check_host(tmp_path, [tools.Addition(list, lambda: ["operator"]), tools.Addition(list)])
    assert capsys.readouterr().out.endswith(" coredns kube operator\n")


@pytest.mark.usefixtures("nothing_is_built")
def test_only_packages_that_are_missing_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"apt-get", "buildah", "conntrack", "ip", "iptables", "mmdebstrap", "nft", "runc"}
    monkeypatch.setattr("shutil.which", lambda command, path=None: command if command in there else None)
    commands: list[list[str]] = []
    monkeypatch.setattr(tools, "call", lambda command, environment: commands.append(command))
    tools.install_packages()
    assert commands[-1][-3:] == ["gcc", "libc6-dev", "kcat"]


@pytest.mark.usefixtures("nothing_is_built")
def test_packages_of_a_step_are_named_and_installed_with_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr("shutil.which", lambda command, path=None: f"/usr/bin/{command}")
    commands: list[list[str]] = []
    monkeypatch.setattr(tools, "call", lambda command, environment: commands.append(command))
    additions = [tools.Addition(list), tools.Addition(packages=lambda: ("an-rtsp-server", "its-bindings"))]
    tools.check_host(tmp_path, additions)
    assert "on this machine: an-rtsp-server its-bindings;" in capsys.readouterr().out
    tools.install_packages(additions)
    assert commands[-1][-2:] == ["an-rtsp-server", "its-bindings"]


def test_the_step_of_cameras_asks_for_the_rtsp_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtsp_camera, "SYSTEM_PYTHON", "/nowhere/python3")
    addition = STEPS["cameras"].addition
    assert addition is not None
    assert addition.packages() == rtsp_camera.PACKAGES


@pytest.mark.usefixtures("nothing_is_built")
def test_what_go_compiled_serves_every_build_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOOKOUT_CLUSTER_KEEP_GO", raising=False)
    monkeypatch.setattr(tools, "GO_TOOLS", ())
    monkeypatch.setattr(tools, "_stamp", lambda name: tools.KUBERNETES)
    compiled = tmp_path / "go" / "build" / "package"
    seen: list[bool] = []

    def one() -> None:
        with tools.go_trees():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            compiled.touch()

    def another() -> None:
        with tools.go_trees():
            seen.append(compiled.exists())

    tools.build_programs([tools.Addition(one), tools.Addition(another)])
    assert (seen, compiled.exists()) == ([True], False)


@pytest.mark.usefixtures("nothing_is_built")
def test_a_build_that_failed_leaves_what_go_compiled(tmp_path: Path) -> None:
    compiled = tmp_path / "go" / "build" / "package"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    with pytest.raises(tools.ToolError), tools.go_trees():
        raise tools.ToolError("no room left")
    assert compiled.exists()


@pytest.mark.usefixtures("nothing_is_built")
def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(tools.ToolError, match="run as root"):
        tools.build_all()
