"""Downloads recordings from URLs into the user's cache folder.

A stopped download is resumed where it ended. A second question about the same URL downloads nothing.

fsspec's caches are not used: over HTTP, they assume that a URL's bytes never change, and they restart an
interrupted download from the beginning.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lookout.disk import private_folder, read_file, replace_file, sync_folder
from lookout.text import clean
from lookout.video.files import UrlSource
from lookout.video.sandbox import downloaded
from lookout.video.sandbox.opening import DownloadedFile, download, not_stored

CACHE_BYTES: Final = 16 << 30
"""Limit of all downloads in bytes (some hours of 1080p). Above the limit, the oldest downloads are
removed."""
CACHE_S: Final = 24 * 3600.0
"""Seconds that a download is kept after its last use."""
_FACTS, _PART, _WHOLE = "version.json", "recording.part", "recording"


@dataclass(frozen=True, slots=True)
class _Facts:
    """Identify the version of a download's bytes."""

    size: int
    version: str

    def differs(self, size: int | None, version: str) -> str:
        """Return how a size and version differ from these, in words; empty if they belong to the same
        version.
        """
        if size is not None and size != self.size:
            return f"it had {self.size} bytes, now {size}"
        if version != self.version:
            return f"its version was {clean(self.version, 80)}, now {clean(version, 80) or 'not named'}"
        return ""


class Downloads:
    """Manages a user's downloads, each in a separate folder. Runs that read a download hold a shared lock on
    its folder.

    Args:
        folder: Folder of all downloads.
        limit: Limit in bytes of all downloads together.
        now: Returns the time in Unix seconds.
    """

    def __init__(
        self, folder: Path, *, limit: int = CACHE_BYTES, now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._limit, self._now = folder, limit, now

    @contextmanager
    def recording(
        self,
        source: UrlSource,
        progress: Callable[[int, int], None] | None = None,
        *,
        fresh: bool = False,
        notice: Callable[[str], object] = len,
    ) -> Iterator[DownloadedFile]:
        """Provide the bytes of a URL in a file.

        If another run is downloading the same URL, the file is a temporary one.

        Args:
            source: The URL; closed after the download.
            progress: Called with the bytes done and the total bytes.
            fresh: Whether to ignore an earlier download.
            notice: Called with a sentence if the recording has changed since an earlier download.

        Raises:
            CodecError: The recording cannot be read or stored. The next run resumes after the bytes that
                arrived.
        """
        name = hashlib.blake2b(source.url.encode(), digest_size=12).hexdigest()
        entry = self._folder / name
        with ExitStack() as opened:
            opened.callback(source.close)
            try:
                handle = os.open(private_folder(entry), os.O_RDONLY)
                opened.callback(os.close, handle)
                ready = self._prepared(entry, handle, source, progress, fresh, notice)
            except OSError as error:
                raise not_stored(source, f"{clean(self._folder)}: {error.strerror}") from error
            if not ready:
                yield opened.enter_context(downloaded(source, progress))
                return
            source.close()
            yield DownloadedFile(source.name, str(entry / _WHOLE))
            self._touch(entry)
        self._prune()

    def _prepared(
        self,
        entry: Path,
        handle: int,
        source: UrlSource,
        progress: Callable[[int, int], None] | None,
        fresh: bool,
        notice: Callable[[str], object],
    ) -> bool:
        """Download the rest of the recording into its folder; return False if another run's lock prevents
        it.
        """
        if _locked(entry, handle, fcntl.LOCK_EX):
            self._touch(entry)
            self._fill(entry, source, progress, fresh, notice)
            return _locked(entry, handle, fcntl.LOCK_SH)
        if fresh or not _locked(entry, handle, fcntl.LOCK_SH):
            return False
        facts = _facts_of(entry)  # another run reads it
        whole = facts is not None and (entry / _WHOLE).exists()
        return whole and facts is not None and not facts.differs(*source.look_up())

    def _fill(
        self,
        entry: Path,
        source: UrlSource,
        progress: Callable[[int, int], None] | None,
        fresh: bool,
        notice: Callable[[str], object],
    ) -> None:
        facts = None if fresh else _facts_of(entry)
        if facts is not None and (change := facts.differs(*source.look_up())):
            notice(f"{source.name} changed since it was downloaded ({change}); it is downloaded again")
            facts = None
        part, whole = entry / _PART, entry / _WHOLE
        if facts is None:
            _cleared(entry)
        elif whole.exists():
            return
        current = _Facts(source.size, source.version)
        if facts != current or _bytes(part) > current.size:
            _cleared(entry)
            replace_file(entry / _FACTS, json.dumps(asdict(current)).encode())
        self._prune(entry, current.size - _bytes(part))
        download(source, str(part), progress)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(whole)
        sync_folder(entry)

    def _touch(self, entry: Path) -> None:
        os.utime(entry, (self._now(), self._now()))

    def _prune(self, current: Path | None = None, wanted: int = 0) -> None:
        """Remove unusable downloads and those unused for a day, and then the oldest downloads until `wanted`
        bytes fit.

        Args:
            current: The download that needs the space; it is not removed.
            wanted: Bytes that `current` still needs.
        """
        entries = sorted((entry for entry in self._folder.iterdir() if entry.is_dir()), key=_used_s)
        total = wanted + sum(map(_stored, entries))
        for entry in entries:
            if entry == current:
                continue
            full = total > self._limit or (wanted and shutil.disk_usage(self._folder).free < wanted)
            late = self._now() - _used_s(entry) > CACHE_S
            size = _stored(entry)
            if (full or late or _facts_of(entry) is None) and _removed(entry):
                total -= size


def _facts_of(entry: Path) -> _Facts | None:
    """Return which version of a recording a folder has; None if unknown."""
    try:
        facts = _Facts(**json.loads(read_file(entry / _FACTS, limit=4096)))
    except (OSError, ValueError, TypeError):
        return None
    good = isinstance(facts.size, int) and isinstance(facts.version, str) and facts.version
    return facts if good else None


def _locked(entry: Path, handle: int, how: int) -> bool:
    """Lock a folder without waiting; return False if another run holds the lock or removed the folder."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), entry.stat())
    except OSError:
        return False


def _cleared(entry: Path) -> None:
    # The facts last, so that they never describe the bytes of another version.
    for name in (_WHOLE, _PART, _FACTS):
        (entry / name).unlink(missing_ok=True)


def _removed(entry: Path) -> bool:
    """Remove a folder unless a run uses it; return whether it was removed."""
    try:
        handle = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not _locked(entry, handle, fcntl.LOCK_EX):
            return False
        shutil.rmtree(entry, ignore_errors=True)
        return True
    finally:
        os.close(handle)


def _bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _stored(entry: Path) -> int:
    return _bytes(entry / _PART) + _bytes(entry / _WHOLE)


def _used_s(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:  # another run removed it
        return 0.0
