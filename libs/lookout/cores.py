"""How many processor cores this process may use: its affinity, and the CPU limit of its control groups.

`os.cpu_count()` counts the host's cores. In a pod that may use two of them, as many decoders as the host has
cores take turns: the kernel stops them all for the rest of each period.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP, mount: Path = _MOUNT) -> int:
    """Whole cores that this process may use, at least one; a part of a core counts as one.

    Args:
        cgroup: The control groups of the process, as the kernel lists them.
        mount: Where the trees of control groups are mounted.
    """
    quotas = (_quota(folder) for folder in _folders(cgroup, mount))
    limits = [math.ceil(quota) for quota in quotas if quota is not None]
    return min([len(os.sched_getaffinity(0)), *limits])


def _folders(cgroup: Path, mount: Path) -> Iterator[Path]:
    """Folders whose limits hold for this process: those of its groups and of all groups above them.

    In a container the path may be the host's, which its mount lacks: the group of the container is then the
    root of the mount, the last of the folders above.
    """
    try:
        lines = cgroup.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        # hierarchy:controllers:path; version 2 has no controllers
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        own = PurePosixPath(path)
        for root in (mount / controllers, mount / "cpu") if controllers else (mount, mount / "unified"):
            yield from (root / str(part).lstrip("/") for part in (own, *own.parents))


def _quota(folder: Path) -> float | None:
    """Cores that a control group may use (CPU time in a period); None: as many as there are."""
    try:
        if (limit := folder / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        # "max" in version 2, -1 in version 1: no limit
        cores = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None
