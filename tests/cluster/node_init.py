"""The first process of a node or of the control plane: mounts, then programs that are kept running.

``python -m tests.cluster.node_init PLAN`` runs in namespaces of its own; the plan is JSON (`Plan`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from tests.cluster import groups

# kubelet insists on these machine-wide settings; it gets files of its own instead of the machine's.
_DECOYS = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_PAUSE_S = 1.0


@dataclass
class Plan:
    """What one first process does.

    Attributes:
        folder: Where its logs and mounts lie.
        programs: Command lines by name, started in this order.
        node: Whether it is a node, which needs mounts of its own.
        wait_for: A command that must succeed before the program of the same name starts.
        group_version: The version of control groups that a node mounts.
    """

    folder: str
    programs: dict[str, list[str]]
    node: bool = False
    hostname: str = ""
    wait_for: dict[str, list[str]] = field(default_factory=dict)
    group_version: int = 1

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))


def main() -> None:
    """Do what the plan says until SIGTERM."""
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(plan.folder)
    (folder / "log").mkdir(parents=True, exist_ok=True)
    if plan.node:
        _prepare(folder, plan.hostname, plan.group_version)
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name, command in plan.programs.items():
        while (check := plan.wait_for.get(name)) and subprocess.run(
            check, check=False, capture_output=True
        ).returncode:
            time.sleep(0.2)
        running[name] = _start(name, command, folder)
    (folder / "started").touch()
    while True:
        ended, _ = os.waitpid(-1, 0)
        for name, process in running.items():
            if process.pid == ended:
                process.returncode = 0
                time.sleep(_PAUSE_S)
                running[name] = _start(name, plan.programs[name], folder)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _start(name: str, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log" / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _prepare(folder: Path, hostname: str, version: int) -> None:
    _call("hostname", hostname)
    for name in ("var-upper", "var-work"):
        (folder / name).mkdir(exist_ok=True)
    layers = f"lowerdir=/var,upperdir={folder}/var-upper,workdir={folder}/var-work"
    _call("mount", "-t", "overlay", "overlay", "-o", layers, "/var")
    _call("mount", "-t", "tmpfs", "tmpfs", "/run")
    _mount_groups(version)
    for name, value in _DECOYS.items():
        decoy = folder / "decoys" / name
        decoy.parent.mkdir(parents=True, exist_ok=True)
        decoy.write_text(value + "\n")
        _call("mount", "--bind", str(decoy), f"/proc/sys/{name}")
    _call("mount", "--make-rshared", "/")


def _mount_groups(version: int) -> None:
    """Mount control groups; in the node's namespace their root is the node's own group."""
    if version == 2:
        _call("mount", "-t", "cgroup2", "cgroup2", str(groups.MOUNT))
        groups.enable(groups.MOUNT)
        return
    _call("mount", "-t", "tmpfs", "tmpfs", str(groups.MOUNT))
    for name in groups.CONTROLLERS:
        (groups.MOUNT / name).mkdir()
        _call("mount", "-t", "cgroup", "-o", name, "cgroup", str(groups.MOUNT / name))
    (groups.MOUNT / "systemd").mkdir()
    _call("mount", "-t", "cgroup", "-o", "none,name=systemd", "cgroup", str(groups.MOUNT / "systemd"))


def _call(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
