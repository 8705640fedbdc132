"""Manages a folder of memories, with one subfolder per camera and epoch: lists, removes and repairs memories,
and limits their size and age."""

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
"""Separator before the digest in the folder name of a camera whose id is too long."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory in a folder of memories.

    Attributes:
        camera: the memory's camera; if the memory is damaged, the camera named in its path.
        epoch: the number of the memory's epoch; if the memory is damaged, the one named in its path.
        path: the memory's folder.
        about: facts about the memory.
        bytes: bytes on disk.
        fed_s: when a block was last added, Unix seconds.
        damage: why the memory cannot be read; empty if it can.
    """

    camera: str
    epoch: int
    path: Path
    about: dict[str, Any]
    bytes: int
    fed_s: float
    damage: str = ""


def place_of(root: Path | str, camera: str, epoch: int) -> Path:
    """Return the subfolder of a camera's epoch in a folder of memories. A memory that an earlier release
    wrote keeps its subfolder."""
    own = f"{epoch:06d}"
    earlier = Path(root) / re.sub(r"^\.+$|[^A-Za-z0-9._-]", lambda part: "_" * len(part[0]), camera) / own
    with contextlib.suppress(HistoryError):
        if about_of(earlier).get("camera") == camera:
            return earlier
    return Path(root) / folder_name(camera) / own


def folder_name(camera: str) -> str:
    """Return the folder name of a camera. Different ids have different names, and no name leads out of the
    folder, because ids come from untrusted producers.

    Usual ids are not changed. Other characters are percent-encoded, and so are ids that consist only of dots.
    An id that is too long for a file system is cut and gets its digest.
    """
    name = quote(camera, safe="") if camera.strip(".") else "%2E" * len(camera)
    if len(name) <= FOLDER_NAME:
        return name
    # No percent-encoding contains `CUT_SHORT`, so no other id has this name.
    return f"{name[: FOLDER_NAME - 34]}{CUT_SHORT}{checksum(camera.encode()).hex()}"


def entries(root: Path | str, camera: str | None = None) -> list[Entry]:
    """List the memories in a folder, or the folder's own memory if it is one, sorted by camera and epoch.

    Raises:
        HistoryError: the folder contains no memory, or none of that camera.
    """
    path = Path(root)
    memories = sorted(_found(path), key=lambda entry: (entry.camera, entry.epoch))
    if not memories:
        raise HistoryError(f"{path} contains no memory")
    selection = [entry for entry in memories if camera is None or entry.camera == camera]
    if not selection:
        names = ", ".join(sorted({entry.camera for entry in memories}))
        raise HistoryError(f"{path} contains no memory of camera {camera!r}, only of: {names}")
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
    """Erase a camera's memories, or a time range of them (seconds from the start of the camera's source).

    Returns:
        The number of memories removed, and the number of frames erased from memories that remain.

    Raises:
        HistoryError: there is no memory of the camera, or another process is writing one.
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
    """Repair memories by removing their damaged parts. Yields each memory with sentences about what was lost.

    Raises:
        HistoryError: there is no memory of the camera. It is also raised, after all other memories were
            repaired, if another process is writing one or one cannot be read at all.
    """
    failures: list[str] = []
    for entry in entries(root, camera):
        try:
            with _opened(entry.path, salvage=True) as folder:
                yield entry, folder.damage
        except HistoryError as error:
            failures.append(str(error))
    if failures:
        raise HistoryError("; ".join(failures))


def check(path: Path) -> int:
    """Compare all files of a memory with their checksums.

    Returns:
        The number of clusters.

    Raises:
        DamagedMemoryError: a file is damaged or missing.
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
        HistoryError: the memory cannot be read.
    """
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory

    if newest_head(path) is None:
        return MemoryFolder.open(path, owner=False, verify=False).extent
    return SealedMemory.open(path, owner=False).extent


def _opened(path: Path, *, salvage: bool = False) -> MemoryFolder | SealedMemory:
    """Open a memory to change it. The imports are here because they take seconds, and listing memories does
    not need them."""
    from lookout.past.memory.folder import MemoryFolder
    from lookout.past.memory.sealed import SealedMemory

    kind = MemoryFolder if newest_head(path) is None else SealedMemory
    return kind.open(path, salvage=salvage)


def _delete(root: Path, path: Path) -> None:
    """Delete a memory. With a camera's last memory, also delete the camera's folder, whose name reveals the
    camera.

    Raises:
        HistoryError: another process is writing the memory.
    """
    with lock(path):
        shutil.rmtree(path)
    if root in path.parent.parents and not any(path.parent.iterdir()):
        path.parent.rmdir()


def trim(
    root: Path | str, max_bytes: int | None = None, max_age_s: float | None = None, now_s: float | None = None
) -> int:
    """Erase frames that are too old from a folder of memories, and remove memories until the folder is small
    enough.

    A frame's age is the time since a block was last added to its memory, plus the difference between its
    stream time and that of the memory's newest frame. To reduce the size, whole memories are removed,
    starting with the one that got its last block longest ago.

    Args:
        root: the folder.
        max_bytes: maximum size of the folder; None: no limit.
        max_age_s: maximum age of a frame in seconds; None: no limit.
        now_s: the current time, Unix seconds; None: the clock's.

    Returns:
        The number of bytes freed.

    Raises:
        DamagedMemoryError: a memory cannot be opened to erase a part of it; the others were trimmed.
        HistoryError: another process is writing a memory that has to be removed.
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
    """Erase the frames that are more than `age_s` seconds older than the newest frame."""
    first, last = folder.extent.first_us, folder.extent.last_us
    if first is not None and last is not None and first < (end := int(last - age_s * 1e6)):
        folder.forget(-(1 << 62), end)
