"""What a decoder process gives up before it reads a camera's bytes.

Files, sockets, programs, other processes, memory and time.
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
    """What a process needs once it is confined.

    Attributes:
        network: What it reaches.
        code: With Landlock it may still read installed code, to import it late. Otherwise, and without
            Landlock, it can name no path: neither open one nor learn whether it exists.
        folders: With Landlock and `code`, folders that it may read as well.
        threads: It may start threads.
        begin: Starts the threads that it needs from the beginning.
    """

    network: Network = Network.NONE
    code: bool = False
    folders: tuple[str, ...] = ()
    threads: bool = True
    begin: Callable[[], object] = lambda: None


def confine(*, strict: bool = True, landlock: bool = True, needs: Needs | None = None) -> str:
    """Confine this process permanently, without privileges; says how.

    Args:
        strict: fail where the kernel cannot do it; otherwise an audit hook stops Python code, but not FFmpeg.
        landlock: use Landlock where the kernel has it.
        needs: what it needs; None: nothing.

    Raises:
        ConfinementError: strict, and it cannot be done.
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
        raise ConfinementError(f"{threads} threads are running already; they would not be confined")
    # Asked for while files can still be looked at.
    folders = [*_code_folders(), *needs.folders] if needs.code else []
    hide_memory()
    _drop_capabilities()
    if landlock:
        allow_reading(folders)
    # Threads that Landlock did not meet would keep what they could do; the filter takes in all there are.
    needs.begin()
    # Last: what is called above is not on its list.
    filter_calls(may_open=landlock and needs.code, network=needs.network, threads=needs.threads)
    _check()
    return "seccomp and Landlock" if landlock else "seccomp (no Landlock here)"


def hide_memory() -> None:
    """Let no other process of this user read this one's memory or environment, or write a core dump.

    Raises:
        ConfinementError: the kernel refuses.
    """
    if sys.platform != "linux":
        return
    zero = ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, zero, zero, zero, zero) != 0:
        raise ConfinementError(f"memory cannot be hidden: {os.strerror(ctypes.get_errno())}")


def _code_folders() -> list[str]:
    """Folders of installed code: Python's, Lookout's and the system's libraries."""
    paths = sysconfig.get_paths()
    python = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return sorted({*python, str(Path(__file__).resolve().parents[2]), *_LIBRARIES})


def _drop_capabilities() -> None:
    number = _CAPSET.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return  # the filter, which knows the same machines, fails with a message
    # Process 0 is this one; no effective, permitted or inheritable capability (capset(2)).
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if ctypes.CDLL(None, use_errno=True).syscall(number, header, none) != 0:
        raise ConfinementError(f"capabilities cannot be dropped: {os.strerror(ctypes.get_errno())}")


def _check() -> None:
    try:
        socket.socket(socket.AF_UNIX).close()  # of the families that no process may open
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
    """Bound permanently what this process may use: confined, it cannot change a limit any more.

    Args:
        memory: Address space, bytes.
        result: What it may write to a file, bytes.
        cpu_s: CPU seconds from now to its end; then the kernel ends it (SIGKILL). None: no limit.
        own_memory: Memory that is its own (libraries do not count), bytes. None: no limit.
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
