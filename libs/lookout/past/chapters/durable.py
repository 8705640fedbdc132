"""The durable tier: sealed chapters in a folder or an object store (S3, GCS, Azure) that outlives every pod.

A chapter has the same files as in its holder's folder. Its head is uploaded last, and a chapter without a
head counts as absent. Incomplete uploads are removed after an hour.
"""

from __future__ import annotations

import datetime
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import obstore
import structlog
from obstore.exceptions import BaseError

from lookout.past.chapters.checking import checked_chapter
from lookout.past.chapters.service import is_meant
from lookout.past.memory import Chapter, HistoryError, Keep
from lookout.past.memory.catalogue import ByteRange, Head
from lookout.past.memory.chapters import (
    ChapterFacts,
    ChapterFolder,
    facts_of,
    forget_range,
    frames_in,
)
from lookout.past.memory.files import HEADS, head_name
from lookout.past.memory.sealed import file_names, read_head
from lookout.past.memory.shelf import CUT_SHORT, folder_name
from lookout.runtime.net.object_store import open_store
from lookout.runtime.worker import Supervisor
from lookout.text import clean

log = structlog.get_logger(__name__)
_HEADS = 1024
"""Maximum number of chapters whose heads are cached."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A chapter in the tier.

    Attributes:
        place: its folder in the tier.
        chapter: the chapter.
        bytes: bytes of its files.
    """

    place: str
    chapter: Chapter
    bytes: int

    @property
    def begin_us(self) -> int:
        """Wall time of its first frame, Unix microseconds."""
        return int(self.chapter.head.times_us[0]) + self.chapter.origin_us

    @property
    def end_us(self) -> int:
        """Wall time of its last frame, Unix microseconds."""
        return int(self.chapter.head.times_us[-1]) + self.chapter.origin_us


@dataclass(slots=True)
class _Folder:
    """A listing of a chapter's files.

    Attributes:
        files: Bytes of each file, by name.
        newest: When the newest file was written, Unix seconds.
    """

    files: dict[str, int]
    newest: float = 0.0

    @property
    def head(self) -> str | None:
        """File name of the newest version's head; None: the upload is not complete."""
        return max((name for name in self.files if name.startswith(HEADS)), default=None)


class DurableTier:
    """Stores chapters under a URL (`s3://bucket/prefix`, `gs://...`, `az://...`) or in a folder. Thread-safe.

    Credentials and endpoints of object stores come from the usual variables (`AWS_ACCESS_KEY_ID`,
    `AWS_ENDPOINT`, ...), or from files (`lookout.runtime.net.object_store`).
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        """Open the tier; a missing folder is created.

        Args:
            url: URL of an object store, or path of a folder.
            clock: Unix seconds.

        Raises:
            HistoryError: the URL or folder cannot be used.
        """
        self.url, self._clock = url, clock
        self._heads: dict[tuple[str, str], Chapter] = {}
        self._lock = threading.Lock()
        try:
            self._store = open_store(url)
        except (BaseError, OSError, ValueError) as error:
            raise HistoryError(f"{url}: the durable tier cannot be opened: {error}") from error

    def upload(self, facts: ChapterFacts) -> None:
        """Upload a sealed chapter, its head last. Afterwards, files of earlier versions are removed.

        Raises:
            HistoryError: a file could not be read or stored.
        """
        place = _place(facts.camera, facts.name)
        try:
            names = file_names(read_head(facts.path).version)
            for name in names:
                obstore.put(self._store, f"{place}/{name}", (facts.path / name).read_bytes())
            self._sweep(place, names)
        except (BaseError, OSError, HistoryError) as error:
            if not facts.path.exists():  # erased in the meantime, so the upload will never be completed
                self._drop_incomplete(place)
            raise HistoryError(f"{self.url}: chapter {facts.name} could not be stored: {error}") from error

    def _drop_incomplete(self, place: str) -> None:
        """Remove a chapter's files if it has no head."""
        with suppress(HistoryError):  # if this fails, `clean` removes them later
            if all(folder.head is None for folder in self._folders(place).values()):
                self.remove(place)

    def stored(self, cameras: str = "*", *, exact: bool = False) -> list[Stored]:
        """Return the chapters of a camera, or of all cameras that match a pattern. Damaged chapters are
        omitted.

        Args:
            cameras: An id, or a pattern with `*`.
            exact: `cameras` is an id, even if it contains a `*`.

        Raises:
            HistoryError: the tier does not answer.
        """
        prefix = "" if "*" in cameras and not exact else folder_name(cameras)

        def meant(camera: str) -> bool:
            return camera == cameras if exact else is_meant(camera, cameras)

        out = []
        for place, folder in self._folders(prefix).items():
            own = place.partition("/")[0]
            if folder.head is None or not (CUT_SHORT in own or meant(unquote(own))):
                continue
            chapter = self._chapter(place, folder.head)
            if chapter is not None and meant(str(chapter.head.about["camera"])):
                out.append(Stored(place, chapter, sum(folder.files.values())))
        return out

    def listing(self, cameras: str) -> Iterable[Chapter]:
        """Return the chapters of a camera, or of all cameras that match a pattern with `*`.

        Raises:
            HistoryError: the tier does not answer.
        """
        return [stored.chapter for stored in self.stored(cameras)]

    def read(self, chapter: Chapter, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of ranges of a chapter's files, in the order of `ranges`.

        Raises:
            HistoryError: a range cannot be read.
        """
        place = _place(str(chapter.head.about["camera"]), chapter.name)
        out = [b""] * len(ranges)
        by_file: dict[str, list[int]] = {}
        for number, part in enumerate(ranges):
            if part.length:
                by_file.setdefault(part.file, []).append(number)
        with self._asking(f"chapter {chapter.name} cannot be read"):
            for name, numbers in by_file.items():
                data = obstore.get_ranges(
                    self._store,
                    f"{place}/{name}",
                    starts=[ranges[number].offset for number in numbers],
                    lengths=[ranges[number].length for number in numbers],
                )
                for number, content in zip(numbers, data, strict=True):
                    out[number] = bytes(content)
        return out

    def remove(self, place: str) -> None:
        """Remove a chapter, its heads first.

        Raises:
            HistoryError: a file could not be removed.
        """
        files = [name for folder in self._folders(place).values() for name in folder.files]
        heads = [name for name in files if name.startswith(HEADS)]
        with self._asking(f"{place} could not be removed"):
            for names in (heads, [name for name in files if name not in heads]):
                if names:
                    obstore.delete(self._store, [f"{place}/{name}" for name in names])

    def erase(self, camera: str, begin_us: int, end_us: int) -> int:
        """Erase [begin, end), a range of a camera's wall time (Unix microseconds), from all of its chapters.
        Repeating an erasure costs only one listing.

        A chapter that lies within the range, or cannot be read, is removed. Any other chapter that overlaps
        the range is rewritten without it, as its holder would do.

        Returns:
            The number of frames erased.

        Raises:
            HistoryError: a file could not be changed, or a chapter's upload is incomplete; erase the range
                again later.
        """
        frames = 0
        chapters = self.stored(camera, exact=True)
        self._check_complete(camera, {stored.place for stored in chapters})
        for stored in chapters:
            chapter = stored.chapter
            if stored.end_us < begin_us or stored.begin_us >= end_us:
                continue
            if not chapter.holds(begin_us, end_us):
                # The writer of this version may have been killed before it removed the previous files.
                self._sweep(stored.place, file_names(chapter.head.version))
                continue
            if begin_us <= stored.begin_us and stored.end_us < end_us:
                self.remove(stored.place)
            else:
                self._rewrite(stored, begin_us, end_us)
            frames += frames_in(chapter, begin_us, end_us)
        return frames

    def _check_complete(self, camera: str, complete: set[str]) -> None:
        """Check that no upload of a camera's chapter is incomplete. The time range of an incomplete chapter
        is unknown, so the erasure has to wait for it. A chapter whose head cannot be read is removed.

        Args:
            camera: Id of the camera.
            complete: Folders of the camera's readable chapters.

        Raises:
            HistoryError: an upload is incomplete.
        """
        for place, folder in sorted(self._folders(folder_name(camera)).items()):
            if place in complete:
                continue
            if folder.head is None:
                raise HistoryError(
                    f"{self.url}: the upload of {place} is incomplete, so the erasure has to wait until its "
                    "holder completes it, or until it is removed an hour after its last file was written"
                )
            self.remove(place)

    def _sweep(self, place: str, files: Iterable[str]) -> None:
        """Remove all files of a chapter except `files`, those of its current version."""
        current = frozenset(files)
        names = (name for folder in self._folders(place).values() for name in folder.files)
        if stale := [f"{place}/{name}" for name in names if name not in current]:
            with self._asking(f"{place} could not be cleaned up"):
                obstore.delete(self._store, stale)

    def _rewrite(self, stored: Stored, begin_us: int, end_us: int) -> None:
        """Replace a chapter with its next version, which omits a range of wall time."""
        with tempfile.TemporaryDirectory(prefix="lookout-erase-") as scratch:
            path = Path(scratch) / "chapter"
            path.mkdir(mode=0o700)
            with self._asking(f"{stored.place} cannot be read"):
                for name in file_names(stored.chapter.head.version):
                    data = obstore.get(self._store, f"{stored.place}/{name}").bytes()
                    (path / name).write_bytes(bytes(data))
            if forget_range(stored.chapter, path, begin_us, end_us):
                self.upload(facts_of(path))
            else:
                self.remove(stored.place)

    def clean(self, older_s: float = 3600.0) -> int:
        """Remove incomplete uploads that are older than `older_s` seconds.

        Returns:
            The number of chapters removed.

        Raises:
            HistoryError: the tier does not answer.
        """
        oldest = self._clock() - older_s
        folders = self._folders("").items()
        incomplete = [place for place, folder in folders if folder.head is None and folder.newest < oldest]
        for place in incomplete:
            self.remove(place)
        return len(incomplete)

    def expire(self, cameras: Iterable[str], keep: Keep) -> int:
        """Remove cameras' oldest chapters: those older than `keep.seconds`, and those over `keep.bytes`.

        Returns:
            The number of chapters removed.

        Raises:
            HistoryError: the tier does not answer.
        """
        removed = 0
        for camera in cameras:
            chapters = sorted(self.stored(camera, exact=True), key=lambda stored: stored.end_us)
            total = sum(stored.bytes for stored in chapters)
            for stored in chapters:
                horizon = None if keep.seconds is None else (self._clock() - keep.seconds) * 1e6
                old = horizon is not None and stored.end_us < horizon
                if old or (keep.bytes is not None and total > keep.bytes):
                    self.remove(stored.place)
                    total -= stored.bytes
                    removed += 1
        return removed

    def _chapter(self, place: str, head: str) -> Chapter | None:
        """Return the chapter that a head file describes; None: the file is gone, damaged, or another
        chapter's.

        Raises:
            HistoryError: the tier does not answer.
        """
        with self._lock:
            if (place, head) in self._heads:
                return self._heads[place, head]
        path = f"{place}/{head}"
        with self._asking("the durable tier does not answer"):
            try:
                data = bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None  # removed since it was listed
        try:
            chapter = checked_chapter(
                lambda: Head.unpacked(data, path), lambda *names: _place(*names) == place, path
            )
            if head != head_name(chapter.head.version):
                raise HistoryError(f"the head is of version {chapter.head.version}")
        except HistoryError as error:
            log.warning("a damaged chapter is skipped", path=path, error=clean(str(error), 300))
            return None
        with self._lock:
            self._heads[place, head] = chapter
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
        return chapter

    def _folders(self, prefix: str) -> dict[str, _Folder]:
        """List the chapters under a prefix, including incomplete ones, by folder.

        Raises:
            HistoryError: the tier does not answer.
        """
        out: dict[str, _Folder] = {}
        with self._asking("the durable tier does not answer"):
            for chunk in obstore.list(self._store, prefix=prefix or None):
                for entry in chunk:
                    place, _, name = str(entry["path"]).rpartition("/")
                    when = entry["last_modified"]
                    assert isinstance(when, datetime.datetime)
                    folder = out.setdefault(place, _Folder({}))
                    folder.files[name] = int(entry["size"])
                    folder.newest = max(folder.newest, when.timestamp())
        return out

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn failures of the store within the block into a HistoryError that says what failed."""
        try:
            yield
        except (BaseError, OSError) as error:
            raise HistoryError(f"{self.url}: {what}: {error}") from error


def _place(camera: str, name: str) -> str:
    return f"{folder_name(camera)}/{name.rpartition('/')[2]}"


class Uploader:
    """Copies a folder's sealed chapters into the durable tier, from its own thread.

    Args:
        tier: the durable tier.
        folder: the folder with the chapters.
        round_s: seconds between two rounds.
        supervisor: notified if the thread dies.
    """

    def __init__(
        self,
        tier: DurableTier,
        folder: ChapterFolder,
        *,
        round_s: float = 2.0,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._tier, self._folder, self._round_s = tier, folder, round_s
        self._stopped = threading.Event()
        self._upload_lock = threading.RLock()  # no upload runs during an erasure
        # Stored version of each of this folder's chapters; None: the tier was not listed yet.
        self._stored: dict[str, int] | None = None
        self._cameras: set[str] = set()
        self.uploaded = self.failed = 0
        self._cleaned = 0.0
        self._supervisor = supervisor or Supervisor()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._supervisor.start("chapters-durable", self._run)

    def stop(self) -> None:
        """Stop the thread, then copy the remaining sealed chapters."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=20)
        self.round()

    def erase(self, camera: str, begin_us: int, end_us: int) -> int:
        """Erase a range of a camera's wall time from the tier, as `DurableTier.erase` does.

        This folder's rewritten chapters are copied first, so that the tier need not rewrite its copies.
        """
        with self._upload_lock:
            self.round()
            return self._tier.erase(camera, begin_us, end_us)

    def round(self) -> None:
        """Copy every sealed chapter that is not in the tier. About once a minute, also remove expired
        chapters and old incomplete uploads from the tier."""
        with self._upload_lock:
            self._round()

    def _round(self) -> None:
        sealed = [facts for facts in self._folder.chapters() if facts.sealed]
        self._cameras |= {facts.camera for facts in sealed}
        try:
            if sealed:
                self._copy(sealed)
            now = time.monotonic()
            if now - self._cleaned > 60.0:
                self._cleaned = now
                self._tier.expire(sorted(self._cameras), self._folder.rules.keep)
                self._tier.clean()
        except HistoryError as error:
            self.failed += 1
            log.warning("chapters could not be copied to the durable tier", error=str(error))

    def _copy(self, sealed: Sequence[ChapterFacts]) -> None:
        if self._stored is None:
            chapters = self._tier.listing("*")
            self._stored = {chapter.name: chapter.head.version for chapter in chapters}
        for facts in sealed:
            if self._stored.get(facts.name) != facts.version:
                self._tier.upload(facts)
                self.uploaded += 1
                self._stored[facts.name] = facts.version
        # Forget chapters that the folder dropped, because they never come back.
        self._stored = {facts.name: facts.version for facts in sealed}

    def _run(self) -> None:
        while not self._stopped.wait(self._round_s):
            try:
                self.round()
            except Exception as error:  # a failure of the tier must not end the process
                self.failed += 1
                log.exception("chapters could not be copied to the durable tier", error=str(error))
