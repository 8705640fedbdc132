"""Names, metadata and locking of the files in a memory's folder. This module does not import torch."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Any

from lookout.disk import private_opener, read_file
from lookout.past.memory.container import StoredRecord, read_file_record
from lookout.past.memory.errors import DamagedMemoryError, HistoryError, OwnedMemoryError

FORMAT = 2
META, META_COPY, LOCK = "meta.bin", "meta.copy.bin", "owner.lock"
HEADS = "head-"


def about_of(folder: Path | str) -> dict[str, Any]:
    """Return the facts about the memory in a folder, without reading the memory itself.

    Raises:
        DamagedMemoryError: Both the file with the facts and its copy are damaged.
        HistoryError: The folder contains no memory.
    """
    head = newest_head(Path(folder))
    record = read_meta(Path(folder)) if head is None else read_file_record(read_file(head), str(head))
    about: dict[str, Any] = record.header["about"]
    return about


def newest_head(folder: Path) -> Path | None:
    """Return the path of the head of a sealed memory's newest version; None if the memory is not sealed."""
    return max(folder.glob(f"{HEADS}*.bin"), default=None)


def head_name(version: int) -> str:
    """Return the file name of the head of a sealed memory's version. The file's modification time is when a
    block was last added to the memory."""
    return f"{HEADS}{version:08d}.bin"


def is_memory(folder: Path) -> bool:
    """Whether a folder contains a memory, growing or sealed."""
    return (folder / META).is_file() or newest_head(folder) is not None


def index_path(folder: Path, version: int) -> Path:
    """Return the path of a checkpoint's index, the file of a checkpoint that is written last. The file's
    modification time is when a block was last added to the memory."""
    return folder / f"index-{version:08d}.bin"


def log_path(folder: Path, version: int) -> Path:
    """Return the path of the log with the records after a checkpoint."""
    return folder / f"records-{version:08d}.log"


def versions(folder: Path, kind: str = "index") -> list[int]:
    """Return the numbers of a folder's checkpoints, newest first; if `kind` is "records", those of its
    logs."""
    names = (path.stem for path in folder.glob(f"{kind}-*"))
    return sorted((int(name[-8:]) for name in names if name[-8:].isdigit()), reverse=True)


def read_index(folder: Path) -> tuple[int, StoredRecord | None]:
    """Return the number and the index of a folder's newest checkpoint; 0 and None before the first
    checkpoint.

    If the newest index is damaged, an older one is read if it still exists, because its records lead to the
    same state.

    Raises:
        DamagedMemoryError: no index is intact.
    """
    damage: DamagedMemoryError | None = None
    for version in versions(folder) or versions(folder, "records")[-1:]:
        path = index_path(folder, version)
        try:
            if path.is_file():
                return version, read_file_record(read_file(path), str(path))
            if version:
                damage = damage or DamagedMemoryError(f"{path} is missing")
        except DamagedMemoryError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return 0, None


def fed_at(folder: Path | str) -> float:
    """Return when a block was last added to a folder's memory, in Unix seconds. Opening the memory, asking it
    and erasing from it do not count, but any record after the last checkpoint does."""
    path = Path(folder)
    checkpoint = [index_path(path, version) for version in versions(path)[:1]] or [path / META]
    fed = (newest_head(path) or checkpoint[0]).stat().st_mtime
    logs = [entry.stat() for entry in path.glob("records-*.log")]
    return max([fed, *(entry.st_mtime for entry in logs if entry.st_size)])


def lock_of(folder: Path) -> IO[str]:
    """Lock a folder that contains a memory, as `lock` does.

    Raises:
        OwnedMemoryError: another process owns the memory.
        HistoryError: the folder contains no memory.
    """
    if not (folder / META).is_file():
        raise HistoryError(f"{folder} contains no memory: {META} is missing")
    return lock(folder)


def lock(folder: Path) -> IO[str]:
    """Lock a folder, so that only this process writes to it. The lock is released when the returned file is
    closed or the process dies.

    Raises:
        OwnedMemoryError: another process has the lock.
    """
    owner = open(folder / LOCK, "w", opener=private_opener)  # noqa: SIM115 (the caller closes it)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner.close()
        raise OwnedMemoryError(f"{folder}: another process is writing this memory") from error
    return owner


def bytes_of(path: Path) -> bytes:
    """Return the bytes of a file; empty if the file is missing."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""


def read_meta(folder: Path) -> StoredRecord:
    """Read the record with the facts about a folder's memory, from its file or the file's copy."""
    path = folder / META
    if not path.is_file():
        raise HistoryError(f"{folder} contains no memory: {META} is missing")
    try:
        record = read_file_record(read_file(path), str(path))
    except DamagedMemoryError:
        copy = bytes_of(folder / META_COPY)
        if not copy:
            raise
        record = read_file_record(copy, f"{path}, and its copy {folder / META_COPY}")
    if (written := record.header.get("format")) != FORMAT:
        raise HistoryError(f"{folder}: the memory has format {written}, but this release reads only {FORMAT}")
    return record
