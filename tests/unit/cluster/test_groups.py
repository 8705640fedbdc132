"""Control groups of a node: where they are made in each version, on folders that stand for the kernel's."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from tests.cluster import groups

_ALL = "cpuset cpu io memory hugetlb pids"


class Kernel:
    """A fake of cgroup version 2: a folder that holds processes refuses controllers for those below it.

    Args:
        monkeypatch: Puts it below `Path.write_text`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = Path.write_text
        fake = self

        def write(path: Path, text: str) -> int:
            return fake.write(path, text)

        monkeypatch.setattr(Path, "write_text", write)

    def make(self, folder: Path, controllers: str = _ALL, processes: str = "") -> None:
        """Make one group."""
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in (
            ("cgroup.controllers", controllers),
            ("cgroup.procs", processes),
            ("cgroup.subtree_control", ""),
        ):
            self._write(folder / file, text)

    def write(self, path: Path, text: str) -> int:
        """Do what the kernel does when a file of a group is written."""
        if path.name == "cgroup.subtree_control":
            if (path.parent / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "Device or resource busy")
            text = f"{path.read_text()} {text.removeprefix('+')}".strip()
        if path.name == "cgroup.procs":
            self._write(path.parent.parent / "cgroup.procs", "")
        return self._write(path, text)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_a_hybrid_machine_counts_as_version_one(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb")
    assert groups.version(tmp_path) == 1


def test_version_two_needs_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io pids")
    assert (groups.version(tmp_path), groups.missing(tmp_path)) == (None, ["memory"])
    (tmp_path / "cgroup.controllers").write_text(_ALL)
    assert groups.version(tmp_path) == 2


def test_a_node_of_version_two_is_beside_the_group_of_who_starts_it(tmp_path: Path, kernel: Kernel) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/user.slice/user-0.slice/session-1.scope\n")
    session = mount / "user.slice" / "user-0.slice" / "session-1.scope"
    for folder in (mount, session.parent.parent, session.parent):
        kernel.make(folder)
    kernel.make(session, processes="17 18")
    made = groups.make("node1", mount, own)
    top = session.parent / "lookout-node1"
    assert made == groups.NodeGroups((top,), top / "first")
    for folder in (mount, session.parent.parent, session.parent):
        assert sorted((folder / "cgroup.subtree_control").read_text().split()) == sorted(_ALL.split())
    assert (session / "cgroup.subtree_control").read_text() == ""
    assert (session / "cgroup.procs").read_text() == "17 18"
    assert (top / "cpu.weight").read_text() == "600"
    assert made.first is not None
    assert made.first.is_dir()


def test_what_is_enabled_is_not_written_again(tmp_path: Path, kernel: Kernel) -> None:
    kernel.make(tmp_path, "cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("+cpu")
    groups.enable(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text().split() == ["cpu", "memory"]


def test_processes_of_a_containers_root_group_are_moved(tmp_path: Path, kernel: Kernel) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/\n")
    kernel.make(mount, processes="1")
    assert groups.make("node1", mount, own).tops == (mount / "lookout-node1",)
    assert (mount / "others" / "cgroup.procs").read_text() == "1"
    assert "memory" in (mount / "cgroup.subtree_control").read_text()


def test_processes_of_other_groups_are_not_moved(tmp_path: Path, kernel: Kernel) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/slice/service\n")
    kernel.make(mount)
    kernel.make(mount / "slice", processes="7")
    with pytest.raises(OSError, match="busy"):
        groups.make("node1", mount, own)
    assert (mount / "slice" / "cgroup.procs").read_text() == "7"


def test_a_node_of_version_one_has_a_group_of_each_controller_below_its_starters(tmp_path: Path) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("4:memory:/service\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n")
    for name in (*groups.CONTROLLERS, "systemd"):
        (mount / name).mkdir(parents=True)
    (mount / "memory" / "service").mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        (mount / "cpuset" / file).write_text("0-1")
    made = groups.make("node1", mount, own)
    assert made.first is None
    assert mount / "memory" / "service" / "lookout-node1" in made.tops
    assert len(made.tops) == len(groups.CONTROLLERS) + 1
    assert (mount / "cpu" / "lookout-node1" / "cpu.shares").read_text() == "6144"
    assert (mount / "cpuset" / "lookout-node1" / "cpuset.cpus").read_text() == "0-1"


@pytest.mark.parametrize("count", [1, 2])
def test_a_nodes_first_process_joins_its_groups(tmp_path: Path, count: int) -> None:
    tops = tuple(tmp_path / f"a group {number}" for number in range(count))
    first = tops[0] / "first" if count == 1 else None
    for folder in (*tops, *((first,) if first else ())):
        folder.mkdir()
    command = groups.NodeGroups(tops, first).command(["echo", "$HOME", "it's here"])
    at = command.index("unshare")
    assert command[at + 1] == "--cgroup"
    done = subprocess.run([*command[:at], *command[at + 2 :]], check=True, capture_output=True, text=True)
    assert done.stdout == "$HOME it's here\n"
    for folder in (*tops, *((first,) if first else ())):
        assert int((folder / "cgroup.procs").read_text()) > 1
