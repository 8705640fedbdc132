"""The durable tier: sealed chapters in a folder or an object store (S3, GCS, Azure) that outlives every pod.

A chapter's files are uploaded first, then `chapter.json`, which names them all with sizes and checksums:
without it a chapter does not exist. Incomplete uploads are removed when they are old enough.
"""

from __future__ import annotations

import datetime
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
import structlog
from obstore.exceptions import BaseError

from lookout.past.chapters.checking import FORMAT, checked_chapter, read_manifest
from lookout.past.chapters.service import PREFIXES, is_meant
from lookout.past.memory import Chapter, HistoryError, Keep
from lookout.past.memory.catalogue import ByteRange, Head, packed_prefix
from lookout.past.memory.chapters import (
    ChapterFacts,
    ChapterFolder,
    facts_of,
    forget_range,
    frames_in,
)
from lookout.past.memory.packing import checksum
from lookout.past.memory.shelf import CUT_SHORT, folder_name
from lookout.past.memory.types import Prefix
from lookout.runtime.net.object_store import open_store
from lookout.runtime.worker import Supervisor
from lookout.text import clean

log = structlog.get_logger(__name__)
MANIFEST = "chapter.json"
LEAN = "lean-head.bin"
"""The head without its prefix, which takes a megabyte in a 7B model and is the same in all of its
chapters."""


class DurableTier:
    """Chapters under an address: `s3://bucket/prefix`, `gs://...`, `az://...`, or a folder. Thread-safe.

    Credentials and endpoints of object stores come from the usual variables (`AWS_ACCESS_KEY_ID`,
    `AWS_ENDPOINT`, ...), or from files (`lookout.runtime.net.object_store`).
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        """Open the tier; a missing folder is created.

        Raises:
            HistoryError: the address cannot be used.
        """
        self.url, self._clock = url, clock
        self._heads: dict[tuple[str, str, int], Chapter] = {}
        self._prefixes: dict[str, Prefix] = {}
        self._lock = threading.Lock()
        try:
            self._store = open_store(url)
        except (BaseError, OSError, ValueError) as error:
            raise HistoryError(f"{url}: the durable tier cannot be opened: {error}") from error

    def upload(self, facts: ChapterFacts) -> None:
        """Upload a sealed chapter. Its manifest comes last; files of an earlier version are removed after it.

        Raises:
            HistoryError: a file could not be read or stored.
        """
        place, files = _place(facts.camera, facts.name), {}

        def put(name: str, data: bytes) -> None:
            obstore.put(self._store, f"{place}/{name}", data)
            files[name] = {"bytes": len(data), "checksum": checksum(data).hex()}

        try:
            for path in sorted(facts.path.glob("*.bin")):
                put(path.name, path.read_bytes())
            head = next(name for name in sorted(files, reverse=True) if name.startswith("head-"))
            unpacked = Head.unpacked((facts.path / head).read_bytes(), head)
            put(LEAN, unpacked.packed(whole=False))
            manifest = {
                "format": FORMAT,
                "name": facts.name,
                "camera": facts.camera,
                "version": facts.version,
                "begin_us": facts.begin_us,
                "end_us": facts.end_us,
                "bytes": facts.bytes,
                "head": head,
                "prefix": checksum(packed_prefix(unpacked.prefix)).hex(),
                "files": files,
            }
            obstore.put(self._store, f"{place}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
            self._sweep(place, files)
        except (BaseError, OSError) as error:
            if not facts.path.exists():  # erased in the meantime: nobody completes it
                self._drop_half(place)
            raise HistoryError(f"{self.url}: chapter {facts.name} could not be stored: {error}") from error

    def _drop_half(self, place: str) -> None:
        """Remove the files of a chapter without a manifest."""
        with suppress(BaseError, OSError, HistoryError):  # otherwise `clean` removes it later
            if all(path != f"{place}/{MANIFEST}" for path, _ in self._objects(place)):
                self.remove(place)

    def manifests(self, cameras: str = "*", *, exact: bool = False) -> list[dict[str, Any]]:
        """Return the manifests of a camera's chapters, or of those that match a pattern; damaged ones are
        left out.

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
        try:
            for path, _ in self._objects(prefix):
                folder, _, name = path.rpartition("/")
                own = folder.partition("/")[0]
                if name != MANIFEST or not (CUT_SHORT in own or meant(unquote(own))):
                    continue
                try:
                    manifest = read_manifest(bytes(obstore.get(self._store, path).bytes()))
                    if _place(manifest["camera"], manifest["name"]) != folder:
                        raise HistoryError(f"it is that of {manifest['name']!r}")
                except HistoryError as error:
                    log.warning("a damaged manifest is left out", path=path, error=clean(str(error), 300))
                    continue
                if meant(manifest["camera"]):
                    out.append({**manifest, "place": folder})
        except BaseError as error:
            raise HistoryError(f"{self.url}: the durable tier does not answer: {error}") from error
        return out

    def listing(self, cameras: str) -> Iterable[Chapter]:
        """Return the chapters of a camera, or of those that match a pattern with `*`.

        Raises:
            HistoryError: the tier does not answer.
        """
        return [
            chapter
            for manifest in self.manifests(cameras)
            if (chapter := self._chapter(manifest)) is not None
        ]

    def read(self, chapter: Chapter, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read ranges of a chapter's files.

        Raises:
            HistoryError: they cannot be read.
        """
        place = _place(str(chapter.head.about["camera"]), chapter.name)
        out = [b""] * len(ranges)
        by_file: dict[str, list[int]] = {}
        for number, part in enumerate(ranges):
            if part.length:
                by_file.setdefault(part.file, []).append(number)
        try:
            for name, numbers in by_file.items():
                data = obstore.get_ranges(
                    self._store,
                    f"{place}/{name}",
                    starts=[ranges[number].offset for number in numbers],
                    lengths=[ranges[number].length for number in numbers],
                )
                for number, content in zip(numbers, data, strict=True):
                    out[number] = bytes(content)
        except (BaseError, OSError) as error:
            raise HistoryError(f"{self.url}: chapter {chapter.name} cannot be read: {error}") from error
        return out

    def remove(self, place: str) -> None:
        """Remove a chapter, its manifest first.

        Raises:
            HistoryError: a file could not be removed.
        """
        try:
            paths = [path for path, _ in self._objects(place)]
            manifest = f"{place}/{MANIFEST}"
            if manifest in paths:
                obstore.delete(self._store, manifest)
            contents = [path for path in paths if path != manifest]
            if contents:
                obstore.delete(self._store, contents)
        except (BaseError, OSError) as error:
            raise HistoryError(f"{self.url}: {place} could not be removed: {error}") from error

    def erase(self, camera: str, begin_us: int, end_us: int) -> int:
        """Erase a range of a camera's wall time from every chapter, completely; to erase a range again costs
        one listing.

        A chapter that lies in the range is removed; any other is rewritten without it, as its holder would
        do.

        Returns:
            The number of frames erased.

        Raises:
            HistoryError: a file could not be changed, or a chapter cannot be read; erase the range again.
        """
        frames = 0
        manifests = self.manifests(camera, exact=True)
        self._refuse_half(camera, {str(manifest["place"]) for manifest in manifests})
        for manifest in manifests:
            if int(manifest["end_us"]) < begin_us or int(manifest["begin_us"]) >= end_us:
                continue
            chapter = self._chapter(manifest)
            if chapter is not None and not chapter.holds(begin_us, end_us):
                # The writer of this version may have been killed before it removed the previous files.
                self._swept(str(manifest["place"]), manifest["files"])
                continue
            inside = begin_us <= int(manifest["begin_us"]) and int(manifest["end_us"]) < end_us
            if inside or chapter is None:
                # A chapter that cannot be read or rewritten is removed: nothing of the range may stay.
                self.remove(str(manifest["place"]))
            else:
                self._rewrite(manifest, chapter, begin_us, end_us)
            frames += 0 if chapter is None else frames_in(chapter, begin_us, end_us)
        with self._lock:
            for key in [key for key in self._heads if key[0] == camera]:
                del self._heads[key]
        return frames

    def _refuse_half(self, camera: str, whole: set[str]) -> None:
        """Check that no chapter of a camera is half uploaded: it has no manifest and may hold the range, so
        the erasure waits. A chapter whose manifest cannot be read is removed.

        Raises:
            HistoryError: there is one.
        """
        try:
            paths = [path for path, _ in self._objects(folder_name(camera))]
        except BaseError as error:
            raise HistoryError(f"{self.url}: the durable tier does not answer: {error}") from error
        for place in sorted({path.rpartition("/")[0] for path in paths} - whole):
            if f"{place}/{MANIFEST}" not in paths:
                raise HistoryError(
                    f"{self.url}: {place} is half uploaded: its holder completes it, or it is removed "
                    "an hour after the last byte"
                )
            self.remove(place)

    def _swept(self, place: str, files: Iterable[str]) -> None:
        try:
            self._sweep(place, files)
        except (BaseError, OSError) as error:
            raise HistoryError(f"{self.url}: {place} could not be cleaned up: {error}") from error

    def _sweep(self, place: str, files: Iterable[str]) -> None:
        """Remove files of a chapter's earlier versions."""
        current = {*files, MANIFEST}
        stale = [path for path, _ in self._objects(place) if path.rpartition("/")[2] not in current]
        if stale:
            obstore.delete(self._store, stale)

    def _rewrite(self, manifest: dict[str, Any], chapter: Chapter, begin_us: int, end_us: int) -> None:
        """Replace a chapter with its next version, without a range."""
        with tempfile.TemporaryDirectory(prefix="lookout-erase-") as scratch:
            path = Path(scratch) / "chapter"
            path.mkdir(mode=0o700)
            try:
                for name in manifest["files"]:
                    if name != LEAN:  # made from the next version's head
                        (path / name).write_bytes(self._file(manifest, name))
            except (BaseError, OSError) as error:
                raise HistoryError(f"{self.url}: {manifest['place']} cannot be read: {error}") from error
            if forget_range(chapter, path, begin_us, end_us):
                self.upload(facts_of(path))
            else:
                self.remove(str(manifest["place"]))

    def clean(self, older_s: float = 3600.0) -> int:
        """Remove incomplete uploads that are older than `older_s` seconds.

        Returns:
            The number of chapters removed.

        Raises:
            HistoryError: the tier does not answer.
        """
        newest: dict[str, float] = {}
        complete: set[str] = set()
        try:
            for path, when in self._objects(""):
                folder, _, name = path.rpartition("/")
                newest[folder] = max(newest.get(folder, 0.0), when)
                if name == MANIFEST:
                    complete.add(folder)
        except BaseError as error:
            raise HistoryError(f"{self.url}: the durable tier does not answer: {error}") from error
        oldest = self._clock() - older_s
        half = [folder for folder, when in newest.items() if folder not in complete and when < oldest]
        for folder in half:
            self.remove(folder)
        return len(half)

    def expire(self, cameras: Iterable[str], keep: Keep) -> int:
        """Remove chapters of some cameras beyond their horizon or bytes, oldest first.

        Returns:
            The number of chapters removed.

        Raises:
            HistoryError: the tier does not answer.
        """
        removed = 0
        for camera in cameras:
            own = self.manifests(camera, exact=True)
            manifests = sorted(own, key=lambda manifest: int(manifest["end_us"]))
            total = sum(int(manifest["bytes"]) for manifest in manifests)
            for manifest in manifests:
                horizon = None if keep.seconds is None else (self._clock() - keep.seconds) * 1e6
                old = horizon is not None and int(manifest["end_us"]) < horizon
                if old or (keep.bytes is not None and total > keep.bytes):
                    self.remove(str(manifest["place"]))
                    total -= int(manifest["bytes"])
                    removed += 1
        return removed

    def _chapter(self, manifest: dict[str, Any]) -> Chapter | None:
        camera, name = str(manifest["camera"]), str(manifest["name"])
        key = camera, name, int(manifest["version"])
        with self._lock:
            if key in self._heads:
                return self._heads[key]
        try:
            chapter = checked_chapter(lambda: self._head(manifest), name, camera, self.url)
        except (BaseError, OSError, HistoryError) as error:
            log.warning("a chapter of the durable tier is left out", chapter=name, error=str(error))
            return None
        with self._lock:
            self._heads[key] = chapter
            while len(self._heads) > 1024:
                del self._heads[next(iter(self._heads))]
        return chapter

    def _head(self, manifest: dict[str, Any]) -> Head:
        """Read a chapter's head. It is read whole once for each prefix, and for chapters that an earlier
        release stored.

        Raises:
            HistoryError: it is damaged.
        """
        digest = str(manifest.get("prefix", ""))
        prefix = self._prefixes.get(digest)
        if prefix is not None and LEAN in manifest["files"]:
            return Head.unpacked(self._file(manifest, LEAN), f"{manifest['place']}/{LEAN}", prefix)
        name = str(manifest["head"])
        head = Head.unpacked(self._file(manifest, name), f"{manifest['place']}/{name}")
        with self._lock:
            if len(self._prefixes) < PREFIXES and checksum(packed_prefix(head.prefix)).hex() == digest:
                self._prefixes[digest] = head.prefix
        return head

    def _file(self, manifest: dict[str, Any], name: str) -> bytes:
        """Read a file of a chapter.

        Raises:
            HistoryError: its checksum is not the one in the manifest.
        """
        path = f"{manifest['place']}/{name}"
        data = bytes(obstore.get(self._store, path).bytes())
        if checksum(data).hex() != manifest["files"][name]["checksum"]:
            raise HistoryError(f"{path}: its checksum does not match")
        return data

    def _objects(self, prefix: str) -> Iterable[tuple[str, float]]:
        """Yield the paths under a prefix, and when each was written."""
        for chunk in obstore.list(self._store, prefix=prefix or None):
            for entry in chunk:
                when = entry["last_modified"]
                assert isinstance(when, datetime.datetime)
                yield str(entry["path"]), when.timestamp()


def _serial(name: str) -> str:
    return name.rpartition("/")[2]


def _place(camera: str, name: str) -> str:
    return f"{folder_name(camera)}/{_serial(name)}"


class Uploader:
    """Copies sealed chapters of a folder into the durable tier, on a thread of its own.

    Args:
        tier: the durable tier.
        folder: the folder with the chapters.
        round_s: seconds between two rounds.
        supervisor: told when the thread dies.
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
        self._turn = threading.RLock()  # no upload runs during an erasure
        self._stored: dict[str, int] | None = None  # versions of this folder's chapters; None: not asked yet
        self._cameras: set[str] = set()
        self.uploaded = self.failed = 0
        self._cleaned = 0.0
        self._supervisor = supervisor or Supervisor()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = self._supervisor.start("chapters-durable", self._run)

    def stop(self) -> None:
        """Stop the thread, then copy what is sealed."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=20)
        self.round()

    def erase(self, camera: str, begin_us: int, end_us: int) -> int:
        """Erase a range of a camera's wall time from the tier, as `DurableTier.erase` does.

        The next versions of this folder's chapters are copied first, so that the tier need not make them
        again.
        """
        with self._turn:
            self.round()
            return self._tier.erase(camera, begin_us, end_us)

    def round(self) -> None:
        """Copy every sealed chapter that is not in the tier; about once a minute, also remove from it what is
        beyond the horizon."""
        with self._turn:
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
            log.warning("chapters are not in the durable tier", error=str(error))

    def _copy(self, sealed: Sequence[ChapterFacts]) -> None:
        if self._stored is None:
            manifests = self._tier.manifests()
            self._stored = {manifest["name"]: int(manifest["version"]) for manifest in manifests}
        for facts in sealed:
            if self._stored.get(facts.name) != facts.version:
                self._tier.upload(facts)
                self.uploaded += 1
                self._stored[facts.name] = facts.version
        # Chapters that the folder dropped are forgotten: they do not come back.
        self._stored = {facts.name: facts.version for facts in sealed}

    def _run(self) -> None:
        while not self._stopped.wait(self._round_s):
            try:
                self.round()
            except Exception as error:  # nothing in the tier may end the process
                self.failed += 1
                log.exception("chapters are not in the durable tier", error=str(error))
