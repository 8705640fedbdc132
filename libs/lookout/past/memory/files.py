"""The files of a memory folder: their names, the facts they give about the memory, and its owner. Without
torch."""

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
    """Return the facts about a folder's memory, without reading the memory.

    Raises:
        DamagedMemoryError: The file with the facts is damaged, and so is its copy.
        HistoryError: The folder has no memory.
    """
    head = newest_head(Path(folder))
    record = read_meta(Path(folder)) if head is None else read_file_record(read_file(head), str(head))
    about: dict[str, Any] = record.header["about"]
    return about


def newest_head(folder: Path) -> Path | None:
    """Return the head of a sealed memory's newest version; None if nothing has been sealed here."""
    return max(folder.glob(f"{HEADS}*.bin"), default=None)


def head_name(version: int) -> str:
    """Return the file of the head of a version of a sealed memory; its time of change is when the memory last
    took in a block."""
    return f"{HEADS}{version:08d}.bin"


def is_memory(folder: Path) -> bool:
    """Whether a folder holds a memory, growing or sealed."""
    return (folder / META).is_file() or newest_head(folder) is not None


def index_path(folder: Path, version: int) -> Path:
    """Return the index of a checkpoint, which is written last; its time of change is when the memory last
    took in a block."""
    return folder / f"index-{version:08d}.bin"


def log_path(folder: Path, version: int) -> Path:
    """Return the file of the records after a checkpoint."""
    return folder / f"records-{version:08d}.log"


def versions(folder: Path, kind: str = "index") -> list[int]:
    """Return the numbers of a folder's checkpoints, the newest first; of its logs if `kind` is "records"."""
    names = (path.stem for path in folder.glob(f"{kind}-*"))
    return sorted((int(name[-8:]) for name in names if name[-8:].isdigit()), reverse=True)


def read_index(folder: Path) -> tuple[int, StoredRecord | None]:
    """Return the number and the index of a folder's newest checkpoint; 0 and None before the first.

    If that index is damaged, one that was not removed yet is read: the records after it repeat the rest.

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
    """Return when a folder's memory last took in a block, in seconds since 1970. Opening it, asking and
    erasing do not count; records since the last checkpoint do, whatever they are."""
    path = Path(folder)
    checkpoint = [index_path(path, version) for version in versions(path)[:1]] or [path / META]
    fed = (newest_head(path) or checkpoint[0]).stat().st_mtime
    logs = [entry.stat() for entry in path.glob("records-*.log")]
    return max([fed, *(entry.st_mtime for entry in logs if entry.st_size)])


def lock_of(folder: Path) -> IO[str]:
    """Lock a folder that holds a memory, as `lock` does.

    Raises:
        OwnedMemoryError: another process owns it.
        HistoryError: the folder has no memory.
    """
    if not (folder / META).is_file():
        raise HistoryError(f"{folder} holds no memory: {META} is missing")
    return lock(folder)


def lock(folder: Path) -> IO[str]:
    """Own a folder: only one process at a time writes it. Closing the file, or the death of the process,
    releases it.

    Raises:
        OwnedMemoryError: another process owns it.
    """
    owner = open(folder / LOCK, "w", opener=private_opener)  # noqa: SIM115 (the caller's while it owns)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner.close()
        raise OwnedMemoryError(f"{folder}: another process is writing this memory") from error
    return owner


def bytes_of(path: Path) -> bytes:
    """Read the bytes of a file, or none if it is missing."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""


def read_meta(folder: Path) -> StoredRecord:
    """Read the facts about a folder's memory, from its file or that file's copy."""
    path = folder / META
    if not path.is_file():
        raise HistoryError(f"{folder} holds no memory: {META} is missing")
    try:
        record = read_file_record(read_file(path), str(path))
    except DamagedMemoryError:
        copy = bytes_of(folder / META_COPY)
        if not copy:
            raise
        record = read_file_record(copy, f"{path}, and its copy {folder / META_COPY}")
    if (written := record.header.get("format")) != FORMAT:
        raise HistoryError(f"{folder}: written in format {written}; this version reads {FORMAT}")
    return record
