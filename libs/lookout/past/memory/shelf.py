"""A folder of memories with one subfolder per camera and epoch: listing, removing, and limits of size and
age."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lookout.past.memory.container import checksum
from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.files import about_of, fed_at, is_memory, lock, newest_head

if TYPE_CHECKING:
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory
    from lookout.past.memory.types import Extent

FOLDER_NAME = 240
"""Maximum characters of a folder's name; file systems allow 255."""
CUT_SHORT = "%-"
"""Precedes, in a folder's name, the digest of an id that is too long for it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory of a folder.

    Attributes:
        camera: its camera; if it is damaged, the one that its path names.
        epoch: the number of its epoch, likewise.
        path: where it lies.
        about: facts about it.
        bytes: its bytes on disk.
        fed_s: when it last took in a block, in seconds since 1970.
        damage: why nothing of it can be read; else empty.
    """

    camera: str
    epoch: int
    path: Path
    about: dict[str, Any]
    bytes: int
    fed_s: float
    damage: str = ""


def place_of(root: Path | str, camera: str, epoch: int) -> Path:
    """Return where a camera's epoch lies in a folder of memories; a memory of an earlier release stays where
    it is."""
    own = f"{epoch:06d}"
    earlier = Path(root) / re.sub(r"^\.+$|[^A-Za-z0-9._-]", lambda part: "_" * len(part[0]), camera) / own
    with contextlib.suppress(HistoryError):
        if about_of(earlier).get("camera") == camera:
            return earlier
    return Path(root) / folder_name(camera) / own


def folder_name(camera: str) -> str:
    """Return a folder name for a camera's id, a different one for every id: any producer chooses ids.

    Usual ids stay as they are. Other bytes are percent-encoded, and so are dots that would lead out of the
    folder (".."). An id that is too long for a file system is replaced by a part of it and its digest.
    """
    name = quote(camera, safe="") if camera.strip(".") else "%2E" * len(camera)
    if len(name) <= FOLDER_NAME:
        return name
    # No percent-encoding begins like this, so no other id has this name.
    return f"{name[: FOLDER_NAME - 34]}{CUT_SHORT}{checksum(camera.encode()).hex()}"


def entries(root: Path | str, camera: str | None = None) -> list[Entry]:
    """List the memories of a folder (which may be one memory itself), by camera and epoch.

    Raises:
        HistoryError: there is no memory, or none of that camera.
    """
    path = Path(root)
    shelf = sorted(_found(path), key=lambda entry: (entry.camera, entry.epoch))
    if not shelf:
        raise HistoryError(f"{path} holds no memory")
    selection = [entry for entry in shelf if camera is None or entry.camera == camera]
    if not selection:
        names = ", ".join(sorted({entry.camera for entry in shelf}))
        raise HistoryError(f"{path} holds no memory of camera {camera!r}; there are: {names}")
    return selection


def _found(path: Path) -> Iterator[Entry]:
    for folder in [path] if is_memory(path) else filter(is_memory, sorted(path.glob("*/*"))):
        about: dict[str, Any] = {}
        damage = ""
        try:
            about = about_of(folder)
        except HistoryError as error:
            damage = str(error)
        files = [file for file in folder.iterdir() if file.is_file()]
        yield Entry(
            camera=str(about.get("camera", folder.parent.name)),
            epoch=int(about.get("epoch", folder.name if damage and folder.name.isdigit() else 0)),
            path=folder,
            about=about,
            bytes=sum(file.stat().st_size for file in files),
            fed_s=fed_at(folder),
            damage=damage,
        )


def remove(
    root: Path | str, camera: str, since_s: float | None = None, until_s: float | None = None
) -> tuple[int, int]:
    """Erase a camera's memories, or a time range of them (seconds from the start of its source), completely.

    Returns:
        The number of memories removed, and the number of frames erased in those that remain.

    Raises:
        HistoryError: there is no such camera, or another process is feeding it.
    """
    removed = erased = 0
    for entry in entries(root, camera):
        if since_s is None and until_s is None:
            _delete(Path(root), entry.path)
            removed += 1
            continue
        began = int(entry.about.get("began_us", 0))
        begin = -(1 << 62) if since_s is None else int(since_s * 1e6) - began
        end = 1 << 62 if until_s is None else int(until_s * 1e6) - began
        with _opened(entry.path) as folder:
            erased += folder.forget(begin, end)
    return removed, erased


def repair(root: Path | str, camera: str | None = None) -> Iterator[tuple[Entry, list[str]]]:
    """Repair damaged memories by continuing without the damaged parts; yields each memory and what it lost,
    in sentences.

    Raises:
        HistoryError: there is no such camera; or, after all others, another process is feeding one, or
            nothing of one can be read.
    """
    refused: list[str] = []
    for entry in entries(root, camera):
        try:
            with _opened(entry.path, salvage=True) as folder:
                yield entry, folder.damage
        except HistoryError as error:
            refused.append(str(error))
    if refused:
        raise HistoryError("; ".join(refused))


def check(path: Path) -> int:
    """Compare every file of a memory with its checksums.

    Returns:
        The number of clusters.

    Raises:
        DamagedMemoryError: something is damaged.
    """
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory

    if newest_head(path) is None:
        return MemoryFolder.open(path, owner=False).memory.size().clusters
    sealed = SealedMemory.open(path, owner=False)
    clusters = sealed.check()
    if sealed.damage:
        raise DamagedMemoryError("; ".join(sealed.damage))
    return clusters


def extent_of(path: Path) -> Extent:
    """Return the frames and times that a memory covers.

    Raises:
        HistoryError: it cannot be read.
    """
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory

    if newest_head(path) is None:
        return MemoryFolder.open(path, owner=False, verify=False).extent
    return SealedMemory.open(path, owner=False).extent


def _opened(path: Path, *, salvage: bool = False) -> MemoryFolder | SealedMemory:
    """Open a memory to change it. The import takes seconds, and finding memories does not need it."""
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory

    kind = MemoryFolder if newest_head(path) is None else SealedMemory
    return kind.open(path, salvage=salvage)


def _delete(root: Path, path: Path) -> None:
    """Delete one memory; with a camera's last one also the camera's folder, whose name identifies the camera.

    Raises:
        HistoryError: another process is writing to it.
    """
    with lock(path):
        shutil.rmtree(path)
    if root in path.parent.parents and not any(path.parent.iterdir()):
        path.parent.rmdir()


def trim(
    root: Path | str, max_bytes: int | None = None, max_age_s: float | None = None, now_s: float | None = None
) -> int:
    """Keep a folder of memories within a size and an age.

    A frame's age is the time since its memory last took in a block, plus the time by which it is older than
    the newest frame of that memory. To stay within the size, whole memories are removed, the one fed longest
    ago first.

    Returns:
        The number of bytes freed.

    Raises:
        DamagedMemoryError: a memory cannot be opened to erase a part of it; the others were trimmed.
        HistoryError: another process is feeding a memory that has to be removed.
    """
    now = time.time() if now_s is None else now_s
    before = sum(entry.bytes for entry in entries(root))
    damaged: list[str] = []
    for entry in entries(root) if max_age_s is not None else []:
        left_s = (max_age_s or 0.0) - (now - entry.fed_s)
        if left_s <= 0:
            _delete(Path(root), entry.path)
            continue
        try:
            with _opened(entry.path) as folder:
                _forget_older(folder, left_s)
        except DamagedMemoryError as error:
            damaged.append(str(error))
    oldest_first = sorted(_found(Path(root)), key=lambda entry: entry.fed_s)
    total = sum(entry.bytes for entry in oldest_first)
    for entry in oldest_first:
        if max_bytes is None or total <= max_bytes:
            break
        _delete(Path(root), entry.path)
        total -= entry.bytes
    if damaged:
        raise DamagedMemoryError("; ".join(damaged))
    return before - total


def _forget_older(folder: MemoryFolder | SealedMemory, age_s: float) -> None:
    """Erase what is more than `age_s` older than the newest frame."""
    first, last = folder.extent.first_us, folder.extent.last_us
    if first is not None and last is not None and first < (end := int(last - age_s * 1e6)):
        folder.forget(-(1 << 62), end)
