"""Writes files with footage or data computed from it: readable only by their owner, and written as a whole.

Every byte goes through `os.write`, so a full disk fails in the call that writes, never later when a buffer is
flushed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(path: Path | str) -> Path:
    """Create a folder that only its owner can enter, with its missing parents, and return its path.

    An existing folder keeps its mode, because its owner may have opened it to others on purpose.
    """
    folder = Path(path)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return folder


def private_opener(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open`. A new file is readable only by its owner; links are not
    followed."""
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


def is_own(path: Path) -> bool:
    """Whether this is a regular file that belongs to this user and that nobody else can write."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def open_regular(path: Path | str, *, links: bool = True) -> BinaryIO:
    """Open a regular file for reading. Pipes and devices are rejected, because reading them may never end.

    Args:
        path: The file.
        links: Whether to follow a link.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
        ValueError: The name cannot be a file's name.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    file = open(handle, "rb")  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_file(path: Path, *, limit: int | None = None, links: bool = False) -> bytes:
    """Return the bytes of a regular file (`open_regular`).

    Args:
        path: The file.
        limit: Maximum bytes to read; None: any number.
        links: Whether to follow a link.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is larger than the limit.
    """
    with open_regular(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"{size} bytes exceed the limit of {limit}", str(path))
        return file.read()


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all bytes, in several calls if the system accepts only part of them.

    Raises:
        OSError: The write failed; some bytes may have been written.
    """
    remainder = memoryview(data)
    while remainder:
        remainder = remainder[os.write(handle, remainder) :]


def write_file(path: Path, parts: Iterable[bytes | memoryview], *, sync: bool = True) -> None:
    """Write a new file; it is on disk when this returns, and is removed if it cannot be completed.

    `sync` False lets the system decide when the bytes reach the disk, for files that are useless after this
    process.

    Raises:
        OSError: The write failed; the error names the file.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        try:
            for part in parts:
                write_all(handle, part)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
    except Exception as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        # If a disk is full, the system's error does not name the file.
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file completely or not at all; it is on disk when this returns.

    Raises:
        OSError: The write failed; the error names the file, which still has its previous content.
    """
    part = path.with_name(path.name + ".part")
    try:
        write_file(part, [data])
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new files of a folder durable, if the file system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
