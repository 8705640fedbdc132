"""What a decoder process gives up before it reads a camera's bytes: sockets, new programs, memory, time."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import sys
from typing import Final

from lookout.errors import LookoutError

PR_SET_SECCOMP: Final = 22
PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_MODE_FILTER: Final = 2
CLONE_THREAD: Final = 0x10000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

# Numbers per architecture: (audit architecture, clone, clone3, calls refused with EPERM). Refused are sockets
# of any kind, io_uring (it opens sockets too), new processes and programs, and reaching into other processes.
SYSCALLS: Final[dict[str, tuple[int, int, int, tuple[int, ...]]]] = {
    "x86_64": (
        0xC000003E,
        56,
        435,
        (41, 42, 43, 44, 46, 49, 50, 53, 288, 425, 57, 58, 59, 322, 101, 310, 311, 438, 321, 272, 308, 165),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        435,
        (198, 203, 202, 206, 211, 200, 201, 199, 242, 425, 221, 281, 117, 270, 271, 438, 280, 97, 268, 40),
    ),
}


class ConfinementError(LookoutError, RuntimeError):
    """This system cannot take sockets away from a process."""


def _refuse(code: int) -> int:
    return 0x00050000 | code  # SECCOMP_RET_ERRNO


def seccomp_program(machine: str) -> bytes:
    """The BPF filter for one architecture, as `struct sock_filter` entries."""
    audit, clone, clone3, refused = SYSCALLS[machine]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    program = [step(LOAD, 4), step(EQUAL, audit, 1, 0), step(RETURN, KILL), step(LOAD, 0)]
    if machine == "x86_64":  # the x32 table repeats every call under other numbers
        program += [step(AT_LEAST, 0x40000000, 0, 1), step(RETURN, _refuse(errno.EPERM))]
    for call in refused:
        program += [step(EQUAL, call, 0, 1), step(RETURN, _refuse(errno.EPERM))]
    # Threads are needed, processes are not. clone3 hides its flags, so libc is sent back to clone.
    program += [step(EQUAL, clone3, 0, 1), step(RETURN, _refuse(errno.ENOSYS))]
    program += [step(EQUAL, clone, 0, 3), step(LOAD, 16), step(ANY_BIT, CLONE_THREAD, 1, 0)]
    program += [step(RETURN, _refuse(errno.EPERM)), step(RETURN, ALLOW)]
    return b"".join(program)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _seccomp() -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in SYSCALLS:
        raise ConfinementError(f"no system call filter for {sys.platform} on {machine}")

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    code = seccomp_program(machine)
    program = Program(len(code) // 8, code)
    libc = _libc()
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        raise ConfinementError(f"no_new_privs was refused: {os.strerror(ctypes.get_errno())}")
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    if libc.prctl(PR_SET_SECCOMP, mode, ctypes.byref(program), zero, zero) != 0:
        raise ConfinementError(f"the system call filter was refused: {os.strerror(ctypes.get_errno())}")


def _empty_network() -> None:
    if sys.platform != "linux":
        raise ConfinementError(f"{sys.platform} has no network namespaces")
    libc = _libc()
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise ConfinementError(f"an empty network was refused: {os.strerror(ctypes.get_errno())}")


def _audit() -> None:
    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn")):
            raise PermissionError(f"a decoder process may not use {event}")

    sys.addaudithook(hook)


def take_away_network(strict: bool = True) -> str:
    """Take sockets from this process for good; returns how: seccomp, namespace or, only if not strict, audit.

    A system call filter makes socket() itself fail; in an empty network namespace a socket reaches nothing;
    an audit hook stops Python code but not FFmpeg. Errors: `ConfinementError` if strict and neither of the
    first two is to be had."""
    failures = []
    for name, means in (("seccomp", _seccomp), ("namespace", _empty_network)):
        try:
            means()
        except ConfinementError as error:
            failures.append(str(error))
            continue
        if name == "seccomp":
            _check_no_socket()
        return name
    if strict:
        raise ConfinementError("; ".join(failures))
    _audit()
    return "audit"


def _check_no_socket() -> None:
    try:
        socket.socket().close()
    except PermissionError:
        return
    raise ConfinementError("the system call filter is in place, yet a socket could be opened")


def limit_memory(limit: int) -> None:
    """Bound the address space, open files and core dumps of this process. Bytes."""
    _lower(resource.RLIMIT_AS, limit)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, 64)


def limit_cpu(seconds: float) -> None:
    """From now on this process may use so many seconds of CPU; then the kernel ends it (SIGXCPU)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (OSError, ValueError):
        if sys.platform == "linux":
            raise
