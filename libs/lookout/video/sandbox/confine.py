"""Confines a process before it reads a camera's bytes.

The process loses access to files, sockets, programs and other processes, and gets limits on memory and time.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import socket
import struct
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lookout.video.sandbox.confinement import ConfinementError
from lookout.video.sandbox.landlock import allow_reading, landlock_version
from lookout.video.sandbox.seccomp import Network, filter_calls

_PR_SET_DUMPABLE: Final = 4
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION: Final = 0x20080522
_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


@dataclass(frozen=True, slots=True)
class Needs:
    """Permissions that a process keeps once it is confined.

    Attributes:
        network: The network that the process may reach.
        code: With Landlock, the process may still read installed code, to import it later. If False, or
            without Landlock, the process can use no path at all: it can neither open a path nor find out
            whether the path exists.
        folders: Further folders that the process may read, with Landlock and `code`.
        threads: Whether the process may start threads.
        begin: Called during confinement, to start the threads that the process needs from the beginning.
    """

    network: Network = Network.NONE
    code: bool = False
    folders: tuple[str, ...] = ()
    threads: bool = True
    begin: Callable[[], object] = lambda: None


def confine(*, strict: bool = True, landlock: bool = True, needs: Needs | None = None) -> str:
    """Confine this process permanently, which needs no privileges; return a text that names the means used.

    Args:
        strict: Whether to fail if the kernel cannot confine the process. If False, an audit hook then
            stops only Python code, but not FFmpeg.
        landlock: Whether to use Landlock if the kernel has it.
        needs: Permissions to keep; None: only the permission to start threads.

    Raises:
        ConfinementError: The process cannot be confined, and `strict` is set.
    """
    needs = needs or Needs()
    try:
        return _confine(landlock and landlock_version() > 0, needs)
    except ConfinementError:
        if strict:
            raise
        _audit(needs.network)
        needs.begin()
        return "audit hook"


def _confine(landlock: bool, needs: Needs) -> str:
    if sys.platform == "linux" and (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise ConfinementError(
            f"{threads} threads are already running and would not be confined: confine "
            f"the process before it starts threads"
        )
    # Determined now, while paths can still be resolved.
    folders = [*_code_folders(), *needs.folders] if needs.code else []
    hide_memory()
    _drop_capabilities()
    if landlock:
        allow_reading(folders)
    # Started after Landlock, which restricts only this thread and later ones; the filter covers all threads.
    needs.begin()
    # Applied last, because the filter refuses the calls made above.
    filter_calls(may_open=landlock and needs.code, network=needs.network, threads=needs.threads)
    _check()
    return "seccomp and Landlock" if landlock else "seccomp (no Landlock here)"


def hide_memory() -> None:
    """Prevent core dumps, and keep other processes of this user from reading this process's memory or
    environment.

    Raises:
        ConfinementError: The kernel refuses.
    """
    if sys.platform != "linux":
        return
    zero = ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, zero, zero, zero, zero) != 0:
        raise ConfinementError(f"memory cannot be hidden: {os.strerror(ctypes.get_errno())}")


def _code_folders() -> list[str]:
    """Return the folders of installed code: Python, Lookout and the system's libraries."""
    paths = sysconfig.get_paths()
    python = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return sorted({*python, str(Path(__file__).resolve().parents[2]), *_LIBRARIES})


def _drop_capabilities() -> None:
    number = _CAPSET.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return  # the filter supports the same machines, and raises the error
    # Process 0 is this one; no effective, permitted or inheritable capability (capset(2)).
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if ctypes.CDLL(None, use_errno=True).syscall(number, header, none) != 0:
        raise ConfinementError(f"capabilities cannot be dropped: {os.strerror(ctypes.get_errno())}")


def _check() -> None:
    try:
        socket.socket(socket.AF_UNIX).close()  # a family that no confined process may open
    except PermissionError:
        pass
    else:
        raise ConfinementError("the system call filter is in place, yet a socket could be opened")
    try:
        os.close(os.open("/proc/self/environ", os.O_RDONLY))
    except PermissionError:
        return
    raise ConfinementError("the process is confined, yet a file outside its folders could be opened")


def _audit(network: Network) -> None:
    refused: tuple[str, ...] = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn")
    if network is Network.NONE:
        refused = (*refused, "socket.")

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is not allowed in a decoder process")

    sys.addaudithook(hook)


def limit_resources(memory: int, result: int, cpu_s: float | None, *, own_memory: int | None = None) -> None:
    """Limit this process's resources permanently: once confined, it cannot change the limits.

    Args:
        memory: Address space, bytes.
        result: Largest file that it may write, bytes.
        cpu_s: CPU seconds from now after which the kernel kills the process (SIGKILL). None: no limit.
        own_memory: Private memory in bytes, which excludes libraries. None: no limit.
    """
    if cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        # One second more, because the kernel counts whole seconds.
        _lower(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + cpu_s) + 1)
    _lower(resource.RLIMIT_AS, memory)
    if own_memory is not None:
        _lower(resource.RLIMIT_DATA, own_memory)
    _lower(resource.RLIMIT_FSIZE, result)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, 64)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (OSError, ValueError):
        if sys.platform == "linux":
            raise
