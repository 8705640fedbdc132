"""The files of a memory folder: their names, the facts they give about the memory, and its owner. Without
torch."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lookout.disk import private_opener, read_file
from lookout.past.memory.container import StoredRecord, checksum, read_file_record
from lookout.past.memory.errors import DamagedMemoryError, HistoryError, OwnedMemoryError

FORMAT = 2
MANIFEST, META, META_COPY, LOCK = "manifest.json", "meta.bin", "meta.copy.bin", "owner.lock"


def about_of(folder: Path | str) -> dict[str, Any]:
    """Return the facts about a folder's memory, without reading the memory.

    Raises:
        DamagedMemoryError: The file with the facts is damaged, and so is its copy.
        HistoryError: The folder has no memory.
    """
    about: dict[str, Any] = read_meta(Path(folder)).header["about"]
    return about


def version_of(folder: Path | str) -> int:
    """Return the number of a folder's last checkpoint, from its manifest.

    Raises:
        DamagedMemoryError: the manifest is missing or damaged.
    """
    return int(read_manifest(Path(folder) / MANIFEST)["version"])


def fed_at(folder: Path | str) -> float:
    """Return when a folder's memory last took in a block, in seconds since 1970. Opening it, asking and
    erasing do not count; records since the last checkpoint do, whatever they are."""
    path = Path(folder)
    manifest = path / MANIFEST
    fed = (manifest if manifest.is_file() else path / META).stat().st_mtime
    with contextlib.suppress(OSError, DamagedMemoryError):
        fed = float(read_manifest(manifest)["fed_s"])
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


def needed(path: Path) -> bytes:
    """Read the bytes of a file.

    Raises:
        DamagedMemoryError: It is missing.
    """
    if not path.is_file():
        raise DamagedMemoryError(f"{path} is missing")
    return read_file(path)


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


def facts_checksum(facts: Mapping[str, Any]) -> str:
    """The checksum of a manifest over its other entries."""
    return checksum(json.dumps(facts, sort_keys=True).encode()).hex()


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check a manifest.

    Raises:
        DamagedMemoryError: Its checksum does not match, or it is missing.
    """
    try:
        facts: dict[str, Any] = json.loads(needed(path))
        if facts.pop("checksum") == facts_checksum(facts):
            return facts
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedMemoryError(f"{path}: damaged: its checksum does not match")
