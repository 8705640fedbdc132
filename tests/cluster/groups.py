"""A node's control groups, of version 1 (also beside an empty version 2) and of version 2."""

import errno
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: where control groups are mounted
MOUNT = Path("/sys/fs/cgroup")
#: what version 1 has one folder each for
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
#: what limits of pods need of version 2, and what kubelet uses where the machine has it
REQUIRED = ("cpu", "memory", "pids")
_OPTIONAL = ("cpuset", "io", "hugetlb")
#: a node is dozens of programs and would get the processor time of one
_SHARE = 6
#: below a node's group: its first processes, because a group with limited groups below holds none itself
_FIRST = "first"
#: below a container's root group: the processes that were in it
_OTHERS = "others"


@dataclass(frozen=True)
class NodeGroups:
    """What a node's processes join.

    Attributes:
        tops: One folder a controller of version 1, or one of version 2: the root that the node sees.
        first: The folder below it that version 2 wants the processes in; None for version 1.
    """

    tops: tuple[Path, ...]
    first: Path | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command line that runs another one in these groups, in a namespace that ends at them."""
        join = "; ".join(f"echo $$ > {shlex.quote(str(top))}/cgroup.procs" for top in self.tops)
        inner = list(command)
        if self.first:
            below = f"echo $$ > {shlex.quote(str(self.first))}/cgroup.procs"
            inner = ["sh", "-ec", f'{below}; exec "$@"', "sh", *inner]
        return ["sh", "-ec", f'{join}; exec "$@"', "sh", "unshare", "--cgroup", *inner]


def version(mount: Path = MOUNT) -> int | None:
    """Return 1 or 2: where a node's limits can be set; None: nowhere.

    A hybrid machine has version 2 in a folder beside, without the controllers.
    """
    if (mount / "memory").is_dir():
        return 1
    return None if missing(mount) else 2


def missing(mount: Path = MOUNT) -> list[str]:
    """Return what version 2 lacks here for a node."""
    there = _words(mount / "cgroup.controllers")
    return [name for name in REQUIRED if name not in there]


def make(name: str, mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")) -> NodeGroups:
    """Make a node's control groups where limits of this process's surroundings count for the nodes too.

    Version 1: below this process's own group. Version 2: beside it, because a group that holds processes
    cannot have limited groups below; systemd gives every session and service such a group.

    Args:
        name: Of the node.
        mount: Where control groups are mounted.
        own: Which groups this process is in.

    Raises:
        OSError: The kernel refuses it.
    """
    paths = {}
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.removeprefix("name=").split(","):
            paths[controller] = path.lstrip("/")
    if version(mount) == 1:
        return NodeGroups(tuple(_make_first_version(name, mount, paths)))
    parent = (mount / paths.get("", "")).parent if paths.get("") else mount
    for folder in (mount, *(mount / path for path in _upwards(parent.relative_to(mount)))):
        enable(folder)
    top = parent / f"lookout-{name}"
    (top / _FIRST).mkdir(parents=True, exist_ok=True)
    (top / "cpu.weight").write_text(str(100 * _SHARE))
    return NodeGroups((top,), top / _FIRST)


def enable(folder: Path) -> None:
    """Let groups below a folder of version 2 have limits.

    Raises:
        OSError: The kernel refuses it.
    """
    there, control = _words(folder / "cgroup.controllers"), folder / "cgroup.subtree_control"
    for name in (*REQUIRED, *_OPTIONAL):
        if name not in there or name in _words(control):
            continue
        try:
            control.write_text(f"+{name}")
        except OSError as error:
            if error.errno != errno.EBUSY or (folder.parent / "cgroup.procs").exists():
                raise
            _move_processes(folder)
            control.write_text(f"+{name}")


def _move_processes(folder: Path) -> None:
    """Move a container's processes out of its root group, as Docker in Docker does."""
    others = folder / _OTHERS
    others.mkdir(exist_ok=True)
    for number in _words(folder / "cgroup.procs"):
        try:
            (others / "cgroup.procs").write_text(number)
        except ProcessLookupError:  # it ended meanwhile
            continue


def _upwards(path: Path) -> list[Path]:
    """Return a relative path's folders, outermost first."""
    return [parent for parent in (*reversed(path.parents), path) if parent.parts]


def _make_first_version(name: str, mount: Path, own: dict[str, str]) -> list[Path]:
    tops = []
    for controller in (*CONTROLLERS, "systemd"):
        folder = mount / controller / own.get(controller, "") / f"lookout-{name}"
        folder.mkdir(exist_ok=True)
        if controller == "cpu":
            (folder / "cpu.shares").write_text(str(1024 * _SHARE))
        if controller == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((folder.parent / file).read_text())
        tops.append(folder)
    return tops


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
