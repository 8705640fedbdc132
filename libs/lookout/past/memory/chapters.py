"""Stores the chapters of all cameras of a process in one folder: writes them, seals them, and drops expired
ones.

A chapter is a `MemoryFolder` with a part of one camera's epoch. The camera's owner begins a chapter with the
camera's first block. It seals the chapter when it hands the camera over, when the epoch ends, or when the
chapter reaches a size or an age. A sealed chapter changes only by erasing, which writes its next version.
`lookout ask` and `lookout memory` work on this folder as on any other folder of memories.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from lookout.disk import private_folder
from lookout.past.memory.catalogue import Catalogue, Files, Head, SnapshotFiles
from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.files import fed_at, is_memory, newest_head
from lookout.past.memory.folder import MemoryFolder
from lookout.past.memory.past import Chapter
from lookout.past.memory.sealed import FolderFiles, SealedMemory, read_head, sweep
from lookout.past.memory.shelf import folder_name
from lookout.past.memory.types import BornBlock, Keep, KVShape, MemorySettings, Prefix

log = structlog.get_logger(__name__)

REBUILT = "rebuilt"
"""Key in a chapter's facts, set if the chapter was rebuilt from records."""
VERSIONS = 4
"""Number of versions of a growing chapter that stay readable, so that an answer in progress can finish."""


@dataclass(frozen=True, slots=True)
class ChapterRules:
    """When chapters are sealed, and when they are dropped.

    Attributes:
        keep: limit per camera: seconds (the horizon), bytes, or both.
        disk_bytes: limit of all cameras' chapters together, in bytes.
        seal_s: seconds of stream time after which a chapter is sealed.
        seal_bytes: bytes of KV after which a chapter is sealed.
        origin_us: change of the clock offset (wall time minus stream time) that begins a new chapter.
    """

    keep: Keep
    disk_bytes: int = 20 << 30
    seal_s: float = 600.0
    seal_bytes: int = 256 << 20
    origin_us: int = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Born:
    """A block with its born KV, and the facts needed to begin a chapter with it.

    Attributes:
        camera: id of the camera.
        epoch: epoch of the camera's stream.
        block: the block.
        prefix: the system prefix that the block attended to.
        origin_us: clock offset in microseconds: wall time minus stream time.
    """

    camera: str
    epoch: int
    block: BornBlock
    prefix: Prefix
    origin_us: int

    @property
    def bytes(self) -> int:
        """Bytes of its KV."""
        return self.block.kv_bytes


@dataclass(frozen=True, slots=True)
class ChapterFacts:
    """Facts about a chapter that are known without reading it.

    Attributes:
        name: the chapter's name, `CAMERA/...`.
        camera: id of the camera.
        epoch: epoch of the camera's stream.
        first_block: number of the chapter's first block.
        version: increases with every change of the chapter.
        sealed: whether the chapter accepts no more blocks.
        begin_us: wall time of the first frame, Unix microseconds.
        end_us: wall time of the last frame, Unix microseconds.
        bytes: bytes on disk; for a growing chapter, bytes of KV.
        path: the chapter's folder.
    """

    name: str
    camera: str
    epoch: int
    first_block: int
    version: int
    sealed: bool
    begin_us: int
    end_us: int
    bytes: int
    path: Path

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key of a camera's chapters."""
        return self.epoch, self.first_block, self.name


@dataclass(slots=True, eq=False)
class _Open:
    """A chapter that is being written."""

    name: str
    camera: str
    epoch: int
    first_block: int
    origin_us: int
    folder: MemoryFolder
    next_block: int = 0
    recent: dict[int, tuple[Chapter, Files]] = field(default_factory=dict)


class ChapterFolder:
    """All chapters of a process. A camera's blocks must be added by one thread; reading is thread-safe.

    Attributes:
        changed: Called with the camera's id after its chapters have changed.
        left_out: Why chapters on the disk cannot be read, by their folder.
    """

    def __init__(
        self,
        root: Path,
        rules: ChapterRules,
        shape: KVShape,
        *,
        settings: MemorySettings | None = None,
        bias: torch.Tensor | None = None,
        about: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder. Chapters that an earlier process did not seal are sealed. Unreadable chapters are
        skipped and listed in `left_out`.

        Args:
            root: the folder; created if it is missing.
            rules: when chapters are sealed and dropped.
            shape: shape of one token's KV.
            settings: settings of the memories.
            bias: bias of the key projections, as in `CameraMemory`.
            about: facts to store in every chapter, such as the model's digest and the stride's length.
            clock: Unix seconds.
        """
        self.root, self.rules, self.shape = private_folder(root), rules, shape
        self._settings, self._bias = settings or MemorySettings(), bias
        self._about, self._clock = dict(about or {}), clock
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._sealed: dict[str, ChapterFacts] = {}
        self.changed: Callable[[str], object] = lambda camera: None
        self.left_out: dict[Path, str] = {}
        self._adopt_all()

    # Writing.

    def add(self, born: Born) -> bool:
        """Add a block to its camera's chapter, beginning a new chapter if needed. A block that is not newer
        than the chapter's last block is ignored.

        Returns:
            Whether the block was added.

        Raises:
            HistoryError: the block does not fit the chapter, or could not be written.
        """
        chapter = self._open.get(born.camera)
        if chapter is not None and self._ends(chapter, born):
            self.seal(born.camera)
            chapter = None
        if chapter is not None and born.epoch < chapter.epoch:
            return False
        if chapter is not None and born.block.index < chapter.next_block:
            return False
        if chapter is None:
            if not born.block.frames:
                return False
            chapter = self._begin(born)
        chapter.folder.add(born.block)
        chapter.next_block = born.block.index + 1
        self.changed(born.camera)
        return True

    def seal(self, camera: str) -> ChapterFacts | None:
        """Seal a camera's open chapter and return its facts; None if there is no open chapter.

        Raises:
            HistoryError: a file could not be written. The recorded blocks are sealed when the folder is next
                opened.
        """
        with self._lock:
            chapter = self._open.get(camera)
            if chapter is None:
                return None
            try:
                chapter.folder.seal()
                facts = facts_of(chapter.folder.folder)
            finally:
                chapter.folder.close()
                del self._open[camera]
            self._sealed[facts.name] = facts
        self.expire()
        self.changed(camera)
        return facts

    def close(self) -> None:
        """Seal every open chapter. If one cannot be sealed, the others are sealed nevertheless."""
        for camera in list(self._open):
            try:
                self.seal(camera)
            except HistoryError as error:
                log.warning("a chapter could not be sealed", camera=camera, error=str(error))

    def expire(self) -> list[ChapterFacts]:
        """Drop sealed chapters that are older than the horizon or exceed a limit, oldest first. An unreadable
        chapter is dropped when its files are older than the horizon.

        Returns:
            The dropped chapters that could be read.
        """
        with self._lock:
            for path in [path for path in self.left_out if self._is_past(path)]:
                log.warning(
                    "removing a chapter that cannot be read and is older than the horizon", folder=str(path)
                )
                shutil.rmtree(path, ignore_errors=True)
                del self.left_out[path]
            dropped = []
            for facts in self._expired():
                self._remove(facts)
                dropped.append(facts)
        for camera in {facts.camera for facts in dropped}:
            self.changed(camera)
        return dropped

    def erase(self, camera: str, begin_us: int | None = None, end_us: int | None = None) -> int:
        """Erase a camera's frames with begin <= wall time < end (Unix microseconds; None: no bound) from all
        of its chapters. Repeating an erasure costs almost nothing.

        Returns:
            The number of frames erased.

        Raises:
            HistoryError: a file could not be changed; erase the range again.
        """
        begin, end = -(1 << 61) if begin_us is None else begin_us, 1 << 61 if end_us is None else end_us
        self.seal(camera)
        self._find_unknown(camera)
        frames = 0
        with self._lock:
            for facts in [facts for facts in self._sealed.values() if facts.camera == camera]:
                chapter, _ = read_sealed(facts.path)
                if chapter.holds(begin, end):
                    frames += self._forget(facts, chapter, begin, end)
        self.changed(camera)
        return frames

    # Reading.

    def chapters(self, camera: str | None = None) -> list[ChapterFacts]:
        """List the readable chapters of one camera, or of all cameras (None), sorted by camera and time."""
        with self._lock:
            out = [facts for facts in self._sealed.values() if camera in (None, facts.camera)]
            out += [
                self._open_facts(chapter)
                for chapter in self._open.values()
                if camera in (None, chapter.camera)
            ]
        return sorted(out, key=lambda facts: (facts.camera, facts.order))

    def read(self, name: str) -> tuple[Chapter, Files]:
        """Return the current state of a chapter, and a reader of its files.

        Raises:
            HistoryError: no chapter has that name, or it cannot be read.
        """
        with self._lock:
            chapter = next((chapter for chapter in self._open.values() if chapter.name == name), None)
            if chapter is not None:
                return self._read_open(chapter)
            facts = self._sealed.get(name)
        if facts is None:
            raise HistoryError(f"{self.root}: there is no chapter {name!r}")
        return read_sealed(facts.path)

    def files(self, name: str, version: int) -> Files:
        """Return a reader of the files of a chapter's version.

        Raises:
            HistoryError: there is no such chapter, or the version was replaced.
        """
        with self._lock:
            chapter = next((chapter for chapter in self._open.values() if chapter.name == name), None)
            if chapter is not None and version in chapter.recent:
                return chapter.recent[version][1]
            facts = self._sealed.get(name)
            if facts is not None and facts.version == version:
                return FolderFiles(facts.path)  # without reading its head again for every call
        stored, files = self.read(name)
        if stored.head.version != version:
            raise HistoryError(f"chapter {name!r}: version {version} was replaced by {stored.head.version}")
        return files

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(facts.bytes for facts in self.chapters())

    # Internals.

    def _adopt_all(self) -> None:
        for path in sorted(self.root.glob("*/*")):
            try:
                # None: the chapter has no block, so its folder is removed below.
                facts = self._adopted(path) if is_memory(path) else None
            except (HistoryError, OSError, ValueError, KeyError) as error:
                log.warning("a chapter cannot be read and is skipped", folder=str(path), error=str(error))
                self.left_out[path] = str(error)
                continue
            if facts is not None:
                self._sealed[facts.name] = facts
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        self.expire()

    def _find_unknown(self, camera: str) -> None:
        """Make sure that all of a camera's chapters on the disk are known before an erasure.

        Chapters are unknown if they could not be sealed, or could not be read at the start. Chapters that
        still cannot be read are removed, because nothing of an erased range may remain.

        Raises:
            HistoryError: A chapter still cannot be sealed.
        """
        with self._lock:
            known = {facts.path for facts in self._sealed.values()}
            for path in sorted((self.root / folder_name(camera)).glob("*")):
                if path in known or not path.is_dir():
                    continue
                try:
                    facts = self._adopted(path)
                except (HistoryError, OSError, ValueError, KeyError) as error:
                    if _is_refusal(error) or _is_refusal(error.__cause__):
                        raise HistoryError(f"{path}: the chapter cannot be sealed ({error})") from error
                    log.warning("removing a chapter that cannot be read", folder=str(path), error=str(error))
                    facts = None
                if facts is None:
                    shutil.rmtree(path)
                else:
                    self._sealed[facts.name] = facts

    def _adopted(self, path: Path) -> ChapterFacts | None:
        """Return the facts of a chapter on the disk, after sealing it if needed; None: it has no frames."""
        if newest_head(path) is None:
            with MemoryFolder.open(path, salvage=True) as folder:
                for loss in folder.damage:
                    log.warning("a part of a chapter is lost", loss=loss)
                if not folder.memory.table.frames:
                    return None
                folder.seal()
        else:
            sweep(path, read_head(path))
        return facts_of(path)

    def _begin(self, born: Born) -> _Open:
        serial = f"{born.epoch}-{born.block.index:06d}-{uuid.uuid4().hex[:8]}"
        name = f"{born.camera}/{serial}"
        path = self.root / folder_name(born.camera) / serial
        about = {
            **self._about,
            "camera": born.camera,
            "epoch": born.epoch,
            "first_block": born.block.index,
            "origin_us": born.origin_us,
            "chapter": name,
        }
        folder = MemoryFolder.create(
            path, self.shape, born.prefix, self._settings, bias=self._bias, about=about
        )
        chapter = _Open(name, born.camera, born.epoch, born.block.index, born.origin_us, folder)
        with self._lock:
            self._open[born.camera] = chapter
        return chapter

    def _ends(self, chapter: _Open, born: Born) -> bool:
        """Whether the open chapter must be sealed, because the block begins another chapter."""
        times = chapter.folder.memory.table.times_us.all
        return (
            born.epoch > chapter.epoch
            or abs(born.origin_us - chapter.origin_us) > self.rules.origin_us
            or int(times[-1] - times[0]) >= self.rules.seal_s * 1e6
            or chapter.folder.memory.kv_bytes >= self.rules.seal_bytes
        )

    def _forget(self, facts: ChapterFacts, chapter: Chapter, begin_us: int, end_us: int) -> int:
        try:
            has_kv = forget_range(chapter, facts.path, begin_us, end_us)
        except DamagedMemoryError as error:
            log.warning("removing a chapter that cannot be read", chapter=facts.name, error=str(error))
            has_kv = False
        if has_kv:
            self._sealed[facts.name] = facts_of(facts.path)
        else:
            self._remove(facts)
        return frames_in(chapter, begin_us, end_us)

    def _remove(self, facts: ChapterFacts) -> None:
        del self._sealed[facts.name]
        shutil.rmtree(facts.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            facts.path.parent.rmdir()

    def _expired(self) -> Iterator[ChapterFacts]:
        """Yield the sealed chapters that exceed the rules."""
        rules, now_us = self.rules, int(self._clock() * 1e6)
        within: list[ChapterFacts] = []
        totals: dict[str, int] = {}
        for facts in self.chapters():
            totals[facts.camera] = totals.get(facts.camera, 0) + facts.bytes
        for facts in sorted(self._sealed.values(), key=lambda facts: facts.end_us):
            old = rules.keep.seconds is not None and facts.end_us < now_us - rules.keep.seconds * 1e6
            large = rules.keep.bytes is not None and totals[facts.camera] > rules.keep.bytes
            if old or large:
                totals[facts.camera] -= facts.bytes
                yield facts
            else:
                within.append(facts)
        total = sum(totals.values())
        for facts in within:
            if total <= rules.disk_bytes:
                return
            total -= facts.bytes
            yield facts

    def _is_past(self, path: Path) -> bool:
        keep_s = self.rules.keep.seconds
        try:
            return keep_s is not None and fed_at(path) < self._clock() - keep_s
        except FileNotFoundError:  # erased since
            return True

    def _open_facts(self, chapter: _Open) -> ChapterFacts:
        memory = chapter.folder.memory
        times = memory.table.times_us.all
        return ChapterFacts(
            chapter.name,
            chapter.camera,
            chapter.epoch,
            chapter.first_block,
            memory.version,
            False,
            int(times[0]) + chapter.origin_us,
            int(times[-1]) + chapter.origin_us,
            memory.kv_bytes,
            chapter.folder.folder,
        )

    def _read_open(self, chapter: _Open) -> tuple[Chapter, Files]:
        snapshot = chapter.folder.memory.snapshot()
        if snapshot.version not in chapter.recent:
            catalogue = Catalogue(snapshot, self.shape, chapter.folder.about)
            reading = Chapter(chapter.name, catalogue.head, chapter.origin_us), SnapshotFiles(catalogue)
            chapter.recent[snapshot.version] = reading
            while len(chapter.recent) > VERSIONS:
                del chapter.recent[min(chapter.recent)]
        return chapter.recent[snapshot.version]


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the disk rejected an operation, which may succeed later. A missing file does not count."""
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def frames_in(chapter: Chapter, begin_us: int, end_us: int) -> int:
    """Return the number of a chapter's frames with KV in a range of wall time (Unix microseconds)."""
    times = chapter.head.times_us + chapter.origin_us
    return int((chapter.head.present & (times >= begin_us) & (times < end_us)).sum())


def forget_range(chapter: Chapter, path: Path, begin_us: int, end_us: int) -> bool:
    """Erase a range of wall time from a sealed chapter's folder, by writing its next version.

    This is also needed if the range has no KV left, because embeddings stay when KV expires.

    Returns:
        Whether the chapter still holds any KV.

    Raises:
        HistoryError: a file could not be changed; erase the range again.
    """
    with SealedMemory.open(path) as sealed:
        sealed.forget(begin_us - chapter.origin_us, end_us - chapter.origin_us)
        for loss in sealed.damage:
            log.warning("a part of a chapter is lost", loss=loss)
        return bool(sealed.head.present.any())


def read_sealed(path: Path) -> tuple[Chapter, Files]:
    """Return the sealed chapter in a folder, and a reader of its files.

    Raises:
        HistoryError: the chapter is not sealed, or is damaged.
    """
    return chapter_of(read_head(path)), FolderFiles(path)


def read_chapter(path: Path) -> tuple[Chapter, Files]:
    """Return the chapter in a folder, sealed or growing, and a reader of its files. Another process may own
    it.

    Raises:
        HistoryError: the chapter cannot be read.
    """
    if newest_head(path) is not None:
        return read_sealed(path)
    folder = MemoryFolder.open(path, owner=False)
    catalogue = Catalogue(folder.memory.snapshot(), folder.memory.shape, folder.about)
    return chapter_of(catalogue.head), SnapshotFiles(catalogue)


def without_doubles(chapters: Sequence[Chapter]) -> tuple[list[Chapter], dict[str, str]]:
    """Return the chapters of one camera in order, omitting rebuilt chapters with frames that other chapters
    have.

    Returns:
        The chapters to read, and why others are omitted, by name. An omitted chapter has no reason if all of
        its frames are in other chapters.
    """
    out: list[Chapter] = []
    omitted: dict[str, str] = {}
    for chapter in sorted(chapters, key=lambda copy: (REBUILT in copy.head.about, chapter_order(copy))):
        own, epoch = chapter.head.times_us[chapter.head.present], chapter.head.about["epoch"]
        originals = [original.head for original in out if original.head.about["epoch"] == epoch]
        if REBUILT not in chapter.head.about or not originals:
            out.append(chapter)
            continue
        doubles = np.isin(own, np.concatenate([head.times_us[head.present] for head in originals]))
        if not doubles.any():
            out.append(chapter)
        elif not doubles.all():
            omitted[chapter.name] = "it was rebuilt, but other chapters have a part of it; rebuild it again"
    return sorted(out, key=chapter_order), omitted


def chapter_order(chapter: Chapter) -> tuple[int, int, str]:
    """Sort key of a camera's chapters."""
    about = chapter.head.about
    return int(about["epoch"]), int(about["first_block"]), chapter.name


def chapter_of(head: Head) -> Chapter:
    """Return the chapter that a head describes."""
    return Chapter(str(head.about["chapter"]), head, int(head.about["origin_us"]))


def facts_of(path: Path) -> ChapterFacts:
    """Return the facts of the sealed chapter in a folder.

    Raises:
        HistoryError: the chapter is not sealed, or is damaged.
    """
    chapter, _ = read_sealed(path)
    head = chapter.head
    times = head.times_us + chapter.origin_us
    return ChapterFacts(
        chapter.name,
        str(head.about["camera"]),
        int(head.about["epoch"]),
        int(head.about["first_block"]),
        head.version,
        True,
        int(times[0]),
        int(times[-1]),
        sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        path,
    )
