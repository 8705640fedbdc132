"""Determines how many processor cores this process may use: from its affinity and the CPU limits of its
control groups.

`os.cpu_count()` counts the host's cores. In a pod that may use two of them, one decoder per core of the host
would exceed the limit, and the kernel would stop all decoders for the rest of each period.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP, mount: Path = _MOUNT) -> int:
    """Return the number of cores that this process may use, at least one; fractions are rounded up.

    Args:
        cgroup: The file that lists the control groups of the process.
        mount: Where the control-group hierarchies are mounted.
    """
    quotas = (_quota(folder) for folder in _folders(cgroup, mount))
    limits = [math.ceil(quota) for quota in quotas if quota is not None]
    return min([len(os.sched_getaffinity(0)), *limits])


def _folders(cgroup: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders whose limits apply to this process: those of its groups and of all groups above them.

    In a container, the listed path may be the host's, which does not exist in the container's mount. The
    container's group is then the root of the mount, the last of the folders above.
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
    """Return the cores that a control group may use (CPU time per period); None: no limit."""
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
