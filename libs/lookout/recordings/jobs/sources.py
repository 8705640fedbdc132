"""Reads the recordings of jobs from folders, hosts and object stores that an operator allows."""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from lookout.errors import BadRecordError, TransientError
from lookout.recordings.jobs.ranges import (
    PAUSE_S,
    TRIES,
    AwayError,
    ObjectRanges,
    RangedRecording,
    SourceError,
    VersionRanges,
    first_line,
)
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.ranges import UriRanges
from lookout.text import public_url
from lookout.video.files.names import SUFFIXES, video_files

T = TypeVar("T")
_PIECE = 1 << 20
#: a host that failed this often within this many seconds is not contacted until the failures are older
GIVEN_UP: Final = 5
FORGOTTEN_S: Final = 600.0
_HOSTS: Final = 4096  # maximum number of hosts whose failures are remembered
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_OBJECTS = frozenset({"s3", "gs", "az"})


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A recording that is open for reading.

    Attributes:
        uri: The recording's URI, as in the job.
        data: A file, or a recording that is read in ranges.
        mark: Identifies the recording's content: a file's size and modification time, else the size and
            version stated by its host, or the size and digest of the copy.
        fetched: Whether the file is a private copy, which nobody changes.
    """

    uri: str
    data: Path | RangedRecording
    mark: str
    fetched: bool = False

    def check(self) -> None:
        """Check that the recording has not changed since it was opened; call it around every part.

        Raises:
            SourceError: The recording changed, or is gone.
        """
        if isinstance(self.data, RangedRecording):
            self.data.renew()  # all ranges are of one version, so nothing else must be checked
        elif not self.fetched and (mark := _mark(self.uri, self.data)) != self.mark:
            raise SourceError(f"{public_url(self.uri)} changed while it was read ({self.mark}, now {mark})")


class NoRoomError(TransientError):
    """The disk has no room for a copy at the moment; retry when other copies have been removed."""


class Sources:
    """Opens recordings from allowed places.

    Args:
        roots: Folders whose content may be read; links that lead out of them are not followed.
        fetcher: Fetches from hosts; None: no host is allowed.
        stores: Such as `s3://bucket/folder`; objects below it may be read. Credentials: the usual variables.
        pause: Waits between attempts.
    """

    def __init__(
        self,
        roots: Sequence[Path | str] = (),
        *,
        fetcher: UriFetcher | None = None,
        stores: Sequence[str] = (),
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._roots = [Path(root).resolve() for root in roots]
        self._fetcher = fetcher or UriFetcher((), ())
        self._stores = [store.rstrip("/") for store in stores]
        self._pause = pause
        self._absent = _AbsentHosts()

    def listed(self, uri: str) -> list[str]:
        """Return the recording itself, or the video files of a folder (in a store, its URI ends with `/`).

        Raises:
            SourceError: The recording may not be read, or the folder has no video file.
        """
        url = _parsed(uri)
        if url.scheme in _OBJECTS:
            return self._listed_objects(uri, url) if uri.endswith("/") else [uri]
        if url.scheme != "file":
            return [uri]
        path = self._allowed(uri, url)
        if not os.path.isdir(path):  # also False for impossible names
            return [uri]
        try:
            files = [file for file in video_files(path) if self._within(file.resolve())]
        except OSError as error:
            raise SourceError(f"{public_url(uri)} cannot be listed ({error.strerror})") from error
        if not files:
            raise SourceError(f"{public_url(uri)} is a folder without a video file")
        return [file.as_uri() for file in files]

    @contextmanager
    def open(self, uri: str, mark: str | None = None, asker: str = "") -> Iterator[OpenSource]:
        """Open a recording within the block.

        It is read in ranges if its host supports them and names a version of the bytes; else it is copied.

        Args:
            uri: The recording.
            mark: The recording's `OpenSource.mark` when the job was planned; None: do not compare.
            asker: Who asks. A host that keeps failing for one asker is not contacted for that asker for some
                time.

        Raises:
            SourceError: The recording may not be read, does not exist, or has changed.
            NoRoomError: The disk has no room for a copy at the moment.
        """
        url = _parsed(uri)
        if url.scheme == "file":
            path = self._allowed(uri, url)
            if os.path.isdir(path):
                raise SourceError(f"{public_url(uri)} is a folder without a video file")
            yield _same(OpenSource(uri, path, _mark(uri, path)), mark)
            return
        host = asker, url.netloc
        self._absent.check(uri, host)
        away = partial(self._absent.add, host)
        with ExitStack() as opened:
            ranges = self._tried(uri, partial(self._ranges, uri, url, opened), away)
            if ranges is not None:
                data = RangedRecording(public_url(uri), ranges, self._fetcher.limit, self._pause, away)
                yield _same(OpenSource(uri, data, f"{ranges.size} bytes, version {ranges.version}"), mark)
                return
        with tempfile.NamedTemporaryFile(prefix="lookout-recording-") as file:
            size_and_digest = self._fetched(uri, url, file.name, away)
            yield _same(OpenSource(uri, Path(file.name), size_and_digest, fetched=True), mark)

    def _ranges(self, uri: str, url: SplitResult, opened: ExitStack) -> VersionRanges | None:
        """Return a reader of the recording's ranges; None if its host does not support them."""
        ranges: UriRanges | ObjectRanges
        if url.scheme in _OBJECTS:
            key = self._key(uri, url)  # first, so that nothing is opened for an object that may not be read
            ranges = ObjectRanges(_bucket(url), key)
        else:
            ranges = opened.enter_context(UriRanges(self._fetcher, uri))
        return ranges if ranges.begin() else None

    def _fetched(self, uri: str, url: SplitResult, path: str, away: Callable[[], object]) -> str:
        """Fetch a recording into a file; return its mark."""

        def fetch() -> str:
            with _Copy(uri, path, self._fetcher.limit) as copy:
                if url.scheme in _OBJECTS:
                    self._get_object(uri, url, copy.take)
                else:
                    self._fetcher.stream(uri, copy.take)
                return copy.mark

        return self._tried(uri, fetch, away)

    def _tried(self, uri: str, fetch: Callable[[], T], away: Callable[[], object]) -> T:
        """Return the result of `fetch`, after a few attempts; if all of them fail, call `away`.

        Raises:
            AwayError: All attempts failed.
            SourceError: Another attempt would not help.
            NoRoomError: The disk has no room at the moment.
        """
        for last in (*[False] * (TRIES - 1), True):
            try:
                return fetch()
            except BadRecordError as error:
                raise SourceError(f"{public_url(uri)}: {error.detail}") from error
            except NoRoomError:
                raise
            except TransientError as error:
                if last:
                    away()
                    raise AwayError(f"{public_url(uri)} cannot be read now ({error})") from error
                self._pause(PAUSE_S)
        raise AssertionError("unreachable")

    def _allowed(self, uri: str, url: SplitResult) -> Path:
        named = _path_of(uri, url)
        try:
            path = named.resolve()
        except (OSError, RuntimeError) as error:
            raise SourceError(f"{public_url(uri)} cannot be read ({error})") from error
        if not self._within(path):
            roots = ",".join(map(str, self._roots)) or "nothing"
            raise SourceError(
                f"{public_url(uri)} is not in a folder that may be read: LOOKOUT_RECORDING_ROOTS={roots}"
            )
        return path

    def _within(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _get_object(self, uri: str, url: SplitResult, take: Callable[[bytes], object]) -> None:
        import obstore
        from obstore.exceptions import BaseError

        key = self._key(uri, url)
        bucket = _bucket(url)
        try:
            for piece in obstore.get(bucket, key).stream(min_chunk_size=_PIECE):
                take(bytes(piece))
        except FileNotFoundError as error:
            raise BadRecordError("uri-status", "the object does not exist") from error
        except (BaseError, OSError, ValueError) as error:
            raise TransientError(first_line(error)) from error

    def _listed_objects(self, uri: str, url: SplitResult) -> list[str]:
        import obstore
        from obstore.exceptions import BaseError

        prefix = self._key(uri, url)
        bucket = _bucket(url)
        try:
            batches = list(obstore.list(bucket, prefix or None))
        except (BaseError, OSError, ValueError) as error:
            raise SourceError(f"{public_url(uri)} cannot be listed ({first_line(error)})") from error
        keys = sorted(entry["path"] for batch in batches for entry in batch)
        names = [key for key in keys if posixpath.splitext(key)[1].lower() in SUFFIXES]
        if not names:
            raise SourceError(f"{public_url(uri)} is a folder without a video file")
        return [f"{url.scheme}://{url.netloc}/{name}" for name in names]

    def _key(self, uri: str, url: SplitResult) -> str:
        """Return an object's key from its URI.

        Raises:
            SourceError: The object may not be read.
        """
        key = uri.partition("://")[2].partition("/")[2]
        inside = any(uri == store or uri.startswith(f"{store}/") for store in self._stores)
        if not inside or ".." in key.split("/") or "@" in url.netloc:
            stores = ",".join(self._stores) or "nothing"
            raise SourceError(
                f"{public_url(uri)} is not in a store that may be read: LOOKOUT_RECORDING_STORES={stores}"
            )
        return key.rstrip("/")


class _AbsentHosts:
    """Remembers hosts that failed, separately for each asker, so that they are not contacted for some time.

    A job may have thousands of recordings on one host, and every part of a recording is read on its own.
    Without this, each part would make all attempts again. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._times: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def add(self, host: tuple[str, str]) -> None:
        """Record that a recording on the host was given up."""
        with self._lock:
            self._times[host] = [*self._recent(host), self._clock()]
            self._times.move_to_end(host)
            while len(self._times) > _HOSTS:
                self._times.popitem(last=False)

    def check(self, uri: str, host: tuple[str, str]) -> None:
        """Check that a host may be contacted.

        Raises:
            AwayError: Recordings on the host were given up several times recently.
        """
        with self._lock:
            recent = self._recent(host)
        if len(recent) >= GIVEN_UP:
            again_s = recent[-GIVEN_UP] + FORGOTTEN_S - self._clock()
            raise AwayError(
                f"{public_url(uri)} is not read because its host failed {len(recent)} times; "
                f"it is contacted again in {max(1.0, again_s):.0f} s"
            )

    def _recent(self, host: tuple[str, str]) -> list[float]:
        since = self._clock() - FORGOTTEN_S
        return [moment for moment in self._times.get(host, ()) if moment > since]


class _Copy:
    """A file that receives a recording piece by piece, and computes its digest."""

    def __init__(self, uri: str, path: str, limit: int) -> None:
        self._uri, self._limit, self._size = uri, limit, 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by the block
        self._digest = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def take(self, piece: bytes) -> None:
        """Add a piece.

        Raises:
            SourceError: The recording is too large, or the disk fails.
            NoRoomError: The disk has no room at the moment.
        """
        self._size += len(piece)
        if self._size > self._limit:
            raise SourceError(
                f"{public_url(self._uri)} has more than {self._limit} bytes (LOOKOUT_FETCH_BYTES)"
            )
        try:
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            why = f"{public_url(self._uri)} cannot be stored in {tempfile.gettempdir()} ({error.strerror})"
            raise (NoRoomError if error.errno in _NO_ROOM else SourceError)(why) from error
        self._digest.update(piece)

    @property
    def mark(self) -> str:
        """Size and digest of what was received."""
        return f"{self._size} bytes, {self._digest.hexdigest()}"


def _same(source: OpenSource, mark: str | None) -> OpenSource:
    """Return the source if it has this mark.

    Raises:
        SourceError: The source has another mark, so the recording changed.
    """
    if mark is not None and source.mark != mark:
        raise SourceError(
            f"{public_url(source.uri)} changed since the job was planned ({mark}, now {source.mark})"
        )
    return source


def _parsed(uri: str) -> SplitResult:
    """Split a URI; an absolute path counts as the URI of a file.

    Raises:
        SourceError: The text is not a valid URI, or its scheme is not supported.
    """
    if uri.startswith("/"):
        return SplitResult("file", "", uri, "", "")
    try:
        url = urlsplit(uri)
        _ = url.port
    except ValueError as error:
        raise SourceError(f"not a valid URI ({error})") from error
    if url.scheme not in ("file", "http", "https", *_OBJECTS):
        raise SourceError(
            f"{public_url(uri)}: scheme {url.scheme!r} is not supported: give a file:///folder/clip.mp4"
        )
    return url


def _path_of(uri: str, url: SplitResult) -> Path:
    """Return the path of a `file://` URI, or of an absolute path."""
    if "\x00" in uri or "%00" in uri:
        raise SourceError("a path must not contain a null character")
    if uri.startswith("/"):
        return Path(uri)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise SourceError(f"{public_url(uri)}: a file's URI has an absolute path and no host")
    return Path(unquote(url.path, errors="surrogateescape"))


def _mark(uri: str, path: Path) -> str:
    try:
        facts = os.stat(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{public_url(uri)} cannot be read ({why})") from error
    return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"


def _bucket(url: SplitResult) -> Any:
    """Open the store of an object.

    Raises:
        SourceError: The store cannot be opened: credentials are missing, or the address cannot be used.
    """
    from obstore.exceptions import BaseError

    from lookout.runtime.net.object_store import open_store

    address = f"{url.scheme}://{url.netloc}"
    try:
        return open_store(address)
    except (BaseError, OSError, ValueError) as error:
        raise SourceError(f"{public_url(address)} cannot be opened ({first_line(error)})") from error
