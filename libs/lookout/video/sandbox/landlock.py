"""Landlock limits a process to reading files below a few folders; the process can reach no other file and no
other process.

See the kernel's Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from typing import Final

from lookout.video.sandbox.confinement import ConfinementError

_CREATE_RULESET: Final = 444  # the same numbers on every architecture
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
#: rights over files that each version of the interface knows
_FILE_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK: Final = 0b11  # bind and connect (TCP), since version 4
_SCOPES: Final = 0b11  # abstract Unix sockets and signals, since version 6


def landlock_version() -> int:
    """Return the kernel's Landlock version; 0 if the kernel lacks Landlock or was booted without it."""
    if sys.platform != "linux":
        return 0
    version = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, int(version))


def allow_reading(folders: Iterable[str]) -> None:
    """Restrict the calling thread, and threads that it starts later, to opening files below `folders` for
    reading.

    They cannot inspect, trace or signal processes outside this restriction either.

    Raises:
        ConfinementError: The kernel has no Landlock, or refuses.
    """
    version, libc = landlock_version(), _libc()
    if version == 0:
        raise ConfinementError("this kernel has no Landlock")
    rights = _FILE_RIGHTS[max(abi for abi in _FILE_RIGHTS if abi <= version)]
    # Outside the folders below, the rights named here are denied. Only rights that the kernel knows may be
    # named.
    words = [rights, *([_NETWORK] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if rules < 0:
        raise ConfinementError(f"the kernel refused Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        for folder in folders:
            _add(libc, rules, folder)
        zero = ctypes.c_ulong(0)
        # Without this, the kernel accepts neither Landlock nor a filter from an unprivileged process.
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
            raise ConfinementError(f"the kernel refused no_new_privs: {os.strerror(ctypes.get_errno())}")
        if libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) != 0:
            raise ConfinementError(f"the kernel refused Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(rules)


def _add(libc: ctypes.CDLL, rules: int, folder: str) -> None:
    try:
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing folder needs no rule
    try:
        rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, place)
        if libc.syscall(
            _ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0)
        ):
            raise ConfinementError(f"Landlock refused {folder}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
