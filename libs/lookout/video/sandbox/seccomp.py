"""A kernel filter that allows only the system calls that decoding needs.

A process that reads a camera is given one connection, as its standard input. In this process, `socket`
returns 0, which is that connection, and `connect` returns success, while the kernel does nothing. So FFmpeg's
RTSP client uses the existing connection as if it had opened it, and cannot open another. After a redirect,
FFmpeg closes the connection and cannot get a new one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lookout.video.sandbox.confinement import ConfinementError

PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP: Final = (317, 277)
_SET_MODE_FILTER: Final = 1
_ALL_THREADS: Final = 1  # SECCOMP_FILTER_FLAG_TSYNC
CLONE_THREAD: Final = 0x10000

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
MASK: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MACHINES: Final = ("x86_64", "aarch64")
#: calls with higher numbers are newer than this list. libc tries them first and falls back after ENOSYS
_LAST_KNOWN: Final = 462

# Numbers on x86_64 and aarch64; None if an architecture has no such call. The most frequent come first.
_ALLOWED: Final[dict[str, tuple[int | None, int | None]]] = {
    "futex": (202, 98),
    "read": (0, 63),
    "write": (1, 64),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "madvise": (28, 233),
    "mprotect": (10, 226),
    "brk": (12, 214),
    "clock_gettime": (228, 113),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "lseek": (8, 62),
    "readv": (19, 65),
    "writev": (20, 66),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "close": (3, 57),
    "close_range": (436, 436),
    "fstat": (5, 80),
    "fstatfs": (138, 44),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "fadvise64": (221, 223),
    "readahead": (187, 213),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "recvmsg": (47, 212),  # input files come as descriptors through a socket from the parent
    "mremap": (25, 216),
    "mincore": (27, 232),
    "mlock": (149, 228),
    "munlock": (150, 229),
    "msync": (26, 227),
    "get_mempolicy": (239, 236),
    "membarrier": (324, 283),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "arch_prctl": (158, None),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "sysinfo": (99, 179),
    "uname": (63, 160),
}
#: calls that take a path. They are refused even with Landlock, which decides only which files may be opened:
#: other calls, such as stat, would still reveal whether a path exists
_PATHS: Final[dict[str, tuple[int | None, int | None]]] = {
    "open": (2, None),
    "openat": (257, 56),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "statfs": (137, 43),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
}
#: further calls for a process that was given a connection
_CONNECTED: Final[dict[str, tuple[int | None, int | None]]] = {
    "recvfrom": (45, 207),
    "sendto": (44, 206),
    "shutdown": (48, 210),
    "setsockopt": (54, 208),
    "getsockopt": (55, 209),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
}
_BIND: Final[dict[str, tuple[int | None, int | None]]] = {"bind": (49, 200)}
_SOCKET: Final = (41, 198)
_CONNECT: Final = (42, 203)
_SOCKET_TYPE: Final = 0xF  # without SOCK_NONBLOCK and SOCK_CLOEXEC
_CLONE: Final = (56, 220)
_CLONE3: Final = 435

_F_COMMANDS: Final = (0, 1, 2, 3, 4, 1030, 1034)  # duplicate, flags, F_DUPFD_CLOEXEC, F_GET_SEALS
_IOCTLS: Final = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_PRCTLS: Final = (15, 16, 0x53564D41)  # names of threads and of memory


class Network(StrEnum):
    """The network that a confined process can reach."""

    NONE = "none"
    CONNECTION = "connection"
    """Only the connection that is its standard input."""
    DATAGRAMS = "datagrams"
    """The connection that is its standard input, and UDP to any address, for RTP outside this connection."""


@dataclass(frozen=True, slots=True)
class _Only:
    """A call that is allowed only if one argument has one of these values."""

    call: tuple[int | None, int | None]
    argument: int
    values: tuple[int, ...]


def _limited(pid: int) -> tuple[_Only, ...]:
    return (
        _Only((72, 25), 1, _F_COMMANDS),  # fcntl: not F_SETOWN, which sends signals
        _Only((16, 29), 1, _IOCTLS),  # ioctl: not TIOCSTI, which types into terminals
        _Only((157, 167), 0, _PRCTLS),  # prctl: not PR_SET_DUMPABLE
        _Only((62, 129), 0, (pid,)),  # kill: this process
        _Only((234, 131), 0, (pid,)),  # tgkill: a thread of this process
    )


def seccomp_program(
    machine: str, *, pid: int, may_open: bool, network: Network = Network.NONE, threads: bool = True
) -> bytes:
    """Return the BPF filter for one architecture, as `struct sock_filter` entries.

    Args:
        machine: x86_64 or aarch64.
        pid: The process to which the filter applies.
        may_open: Whether paths may be opened because Landlock checks them; otherwise no call may name a path.
        network: The network that the process may reach.
        threads: Whether the process may start threads.
    """
    which = _MACHINES.index(machine)

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    program = [step(LOAD, 4), step(EQUAL, AUDIT[machine], 1, 0), step(RETURN, KILL), step(LOAD, 0)]
    allowed = {**_ALLOWED, **(_PATHS if may_open else {})}
    if network is not Network.NONE:
        allowed |= _CONNECTED
    if network is Network.DATAGRAMS:
        allowed |= _BIND
    for call in allowed.values():
        if (number := call[which]) is not None:
            program += [step(EQUAL, number, 0, 1), step(RETURN, ALLOW)]
    for condition in _limited(pid):
        number, count = condition.call[which], len(condition.values)
        if number is None:
            continue
        program += [step(EQUAL, number, 0, count + 3), step(LOAD, 16 + 8 * condition.argument)]
        program += [step(EQUAL, value & 0xFFFFFFFF, count - i, 0) for i, value in enumerate(condition.values)]
        program += [step(RETURN, _refuse(errno.EPERM)), step(RETURN, ALLOW)]
    if network is not Network.NONE:
        datagrams = ALLOW if network is Network.DATAGRAMS else _refuse(errno.EPERM)
        program += [step(EQUAL, _SOCKET[which], 0, 10), step(LOAD, 16)]
        program += [step(EQUAL, socket.AF_INET, 1, 0), step(EQUAL, socket.AF_INET6, 0, 4)]
        program += [step(LOAD, 24), step(MASK, _SOCKET_TYPE)]
        program += [step(EQUAL, socket.SOCK_STREAM, 3, 0), step(EQUAL, socket.SOCK_DGRAM, 1, 0)]
        program += [step(RETURN, _refuse(errno.EPERM)), step(RETURN, datagrams), step(RETURN, _ANSWER_0)]
        program += [step(EQUAL, _CONNECT[which], 0, 1), step(RETURN, _ANSWER_0)]
    # Threads may be needed, but processes are not. A filter cannot see clone3's flags, so clone3 fails and
    # libc falls back to clone.
    program += [step(EQUAL, _CLONE3, 0, 1), step(RETURN, _refuse(errno.ENOSYS))]
    if threads:
        program += [step(EQUAL, _CLONE[which], 0, 3), step(LOAD, 16), step(ANY_BIT, CLONE_THREAD, 0, 1)]
        program += [step(RETURN, ALLOW), step(RETURN, _refuse(errno.EPERM))]
    if machine == "x86_64":  # the x32 table repeats every call under other numbers
        program += [step(AT_LEAST, 0x40000000, 0, 1), step(RETURN, _refuse(errno.EPERM))]
    program += [step(AT_LEAST, _LAST_KNOWN + 1, 0, 1), step(RETURN, _refuse(errno.ENOSYS))]
    program += [step(RETURN, _refuse(errno.EPERM))]
    return b"".join(program)


def filter_calls(*, may_open: bool, network: Network = Network.NONE, threads: bool = True) -> None:
    """Apply the filter permanently to this process and all its current threads.

    Raises:
        ConfinementError: This system has no such filter, or refuses it.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in AUDIT:
        raise ConfinementError(f"no system call filter for {sys.platform} on {machine}")

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    code = seccomp_program(machine, pid=os.getpid(), may_open=may_open, network=network, threads=threads)
    program = Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        raise ConfinementError(f"no_new_privs was refused: {os.strerror(ctypes.get_errno())}")
    number = ctypes.c_long(_SECCOMP[_MACHINES.index(machine)])
    kind, flags = ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_ALL_THREADS)
    if (failed := libc.syscall(number, kind, flags, ctypes.byref(program))) != 0:
        why = os.strerror(ctypes.get_errno()) if failed < 0 else f"thread {failed} has another filter"
        raise ConfinementError(f"the kernel refused the system call filter: {why}")


def _refuse(code: int) -> int:
    return 0x00050000 | code  # SECCOMP_RET_ERRNO


_ANSWER_0: Final = _refuse(0)  # no error: the kernel does nothing, and the caller gets 0
