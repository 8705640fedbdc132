"""The environment of confined processes, and how the parent measures their CPU time and threads."""

from __future__ import annotations

import os
import sys
import time


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of another process; None if the system does not report it.

    The clock's id is the kernel's (CPUCLOCK_SCHED of a process), as clock_getcpuclockid(3) returns it.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # the process has ended
        return None


def bare_environment() -> dict[str, str]:
    """Return an environment with only what Python needs to find the same modules, without credentials or
    proxies.
    """
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT")}
    path = os.pathsep.join(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**environment, **threads, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def thread_count(pid: int) -> int:
    """Return the number of threads of another process; 0 if it has ended or the system does not report it."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
