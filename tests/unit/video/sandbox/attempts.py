"""What a decoder that hostile bytes have taken over would try, by bare system calls."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
_HERE = -100  # AT_FDCWD

# name: (x86_64, aarch64)
NUMBERS = {
    "bpf": (321, 280),
    "chdir": (80, 49),
    "chmod": (268, 53),
    "clone": (56, 220),
    "execve": (59, 221),
    "fcntl": (72, 25),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "memfd_create": (319, 279),
    "mkdirat": (258, 34),
    "mount": (165, 40),
    "openat": (257, 56),
    "perf_event_open": (298, 241),
    "pidfd_open": (434, 434),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "renameat2": (316, 276),
    "rt_sigqueueinfo": (129, 138),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "symlinkat": (266, 36),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utimensat": (280, 88),
}


def call(name: str, *arguments: int | bytes | None) -> int:
    """A system call; its result, below zero where it was refused."""
    number = NUMBERS[name][("x86_64", "aarch64").index(platform.machine())]
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(LIBC.syscall(ctypes.c_long(number), *given))


def reads(path: str) -> bool:
    """Whether a file can be opened for reading."""
    fd = call("openat", _HERE, path.encode(), os.O_RDONLY)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def writes(path: str) -> bool:
    """Whether a file can be made."""
    return call("openat", _HERE, path.encode(), os.O_CREAT | os.O_WRONLY, 0o600) >= 0


def attempts(parent: int, secret: str) -> dict[str, Callable[[], bool]]:
    """Every attempt by name; each says whether it succeeded. `secret`: a file that the parent can read."""
    address = ctypes.create_string_buffer(64)
    vector = struct.pack("QQ", ctypes.addressof(address), 8)
    limits = struct.pack("QQ", 1, 1)
    folder = os.path.dirname(secret)
    inside = ["mem", "environ", "maps", "cmdline", "auxv", "fd/0", "root/etc/passwd", "cwd/x", "task"]
    files = [*(f"/proc/{parent}/{name}" for name in inside), "/proc/1/environ", "/proc/self/mem"]
    files += [
        secret,
        folder,
        "/",
        "/etc/passwd",
        "/dev/tty",
        "/dev/ptmx",
        "/sys/kernel",
        "/proc/self/fd/0",
        "/tmp",
    ]
    tries: dict[str, Callable[[], bool]] = {f"read {name}": (lambda name=name: reads(name)) for name in files}  # type: ignore[misc]
    for name in (
        f"{folder}/new",
        f"/proc/{parent}/oom_score_adj",
        f"/proc/{parent}/mem",
        "/dev/shm/new",
        "new",
    ):
        tries[f"write {name}"] = lambda name=name: writes(name)  # type: ignore[misc]

    def succeeds(name: str, *arguments: int | bytes | None) -> None:
        tries[" ".join([name, *(str(each) for each in arguments if isinstance(each, int))])] = lambda: (
            call(name, *arguments) >= 0
        )

    succeeds("unlinkat", _HERE, secret.encode(), 0)
    succeeds("renameat2", _HERE, secret.encode(), _HERE, f"{folder}/other".encode(), 0)
    succeeds("symlinkat", secret.encode(), _HERE, f"{folder}/link".encode())
    succeeds("mkdirat", _HERE, f"{folder}/made".encode(), 0o700)
    succeeds("chmod", _HERE, secret.encode(), 0o777)
    succeeds("utimensat", _HERE, secret.encode(), None, 0)
    succeeds("chdir", b"/")
    for signal in (0, 19):
        succeeds("kill", parent, signal)
        succeeds("tgkill", parent, parent, signal)
        succeeds("tkill", parent, signal)
    succeeds("rt_sigqueueinfo", parent, 0, struct.pack("iii116x", 0, 0, -1))
    succeeds("pidfd_open", parent, 0)
    succeeds("ptrace", 0x4206, parent, 0, 0)  # PTRACE_SEIZE
    succeeds("process_vm_readv", parent, vector, 1, vector, 1, 0)
    succeeds("process_vm_writev", parent, vector, 1, vector, 1, 0)
    succeeds("prlimit64", parent, 0, limits, None)
    succeeds("prlimit64", 0, 0, limits, None)
    succeeds("prlimit64", 0, 0, None, ctypes.addressof(address))
    succeeds("setrlimit", 0, limits)
    succeeds("setpriority", 0, parent, 19)
    succeeds("sched_setaffinity", parent, 8, struct.pack("Q", 1))
    for family in (1, 2, 10, 16, 17):  # Unix, IPv4, IPv6, netlink, packets
        succeeds("socket", family, 1 if family < 16 else 3, 0)
    succeeds("socketpair", 1, 1, 0, struct.pack("ii", 0, 0))
    succeeds("io_uring_setup", 1, bytes(120))
    succeeds("clone", 17, 0, 0, 0, 0)
    succeeds("execve", b"/bin/true", None, None)
    succeeds("memfd_create", b"program", 0)
    succeeds("unshare", 0x10000000)
    succeeds("mount", b"none", b"/tmp", b"tmpfs", 0, None)
    succeeds("setuid", 0)
    succeeds("bpf", 0, bytes(120), 120)
    succeeds("perf_event_open", bytes(120), 0, -1, -1, 0)
    succeeds("userfaultfd", 0)
    succeeds("keyctl", 0, -3, 0)
    succeeds("shmget", 4711, 4096, 0o1600)
    succeeds("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
    succeeds("fcntl", 0, 8, parent)  # F_SETOWN
    succeeds("ioctl", 0, 0x5412, b"x")  # TIOCSTI
    return tries


def successes(parent: int, secret: str) -> list[str]:
    """Names of the attempts that succeeded. Run it in a process that may be lost."""
    return [name for name, attempt in attempts(parent, secret).items() if attempt()]
