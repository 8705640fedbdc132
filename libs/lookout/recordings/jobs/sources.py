"""Opens the recordings of jobs, which may only be in folders, hosts and object stores that an operator
allows."""

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
#: if reading from a host was given up GIVEN_UP times within FORGOTTEN_S seconds, the host is not contacted
#: until fewer of these failures are that recent
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
        data: The path of a file, or a recording that is read in ranges.
        mark: Identifies the recording's content. For a file: its size and modification time. For a recording
            read in ranges: its size and version as stated by its host. For a copy: its size and digest.
        fetched: Whether `data` is a private copy, which nobody else changes.
    """

    uri: str
    data: Path | RangedRecording
    mark: str
    fetched: bool = False

    def check(self) -> None:
        """Check that the recording has not changed since it was opened. Call this before and after every
        part.

        Raises:
            SourceError: The recording changed, or no longer exists.
        """
        if isinstance(self.data, RangedRecording):
            self.data.renew()  # needs no further check, because every range is of the same version
        elif not self.fetched and (mark := _mark(self.uri, self.data)) != self.mark:
            raise SourceError(f"{public_url(self.uri)} changed while it was read ({self.mark}, now {mark})")


class NoRoomError(TransientError):
    """The disk is too full for a copy at the moment. Retry when other copies have been removed."""


class Sources:
    """Opens recordings from allowed places.

    Args:
        roots: Folders whose files may be read. A symbolic link that leads out of them is not followed.
        fetcher: Fetches from allowed hosts; None: no host is allowed.
        stores: Addresses such as `s3://bucket/folder`, below which objects may be read. Credentials come from
            the usual environment variables.
        pause: Waits this many seconds between attempts.
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
        """Return the URIs of a folder's video files; for any other URI, return that URI. In an object store,
        the URI of a folder ends with `/`.

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
        """Open a recording until the end of the `with` block.

        A local file is read in place. A remote recording is read in ranges if its host supports ranges and
        names a version of the content. Otherwise it is first copied to a temporary file.

        Args:
            uri: The recording's URI.
            mark: `OpenSource.mark` when the job was planned; None: do not compare it.
            asker: The tenant of the job. A host that keeps failing for a tenant is not contacted for this
                tenant for some time.

        Raises:
            SourceError: The recording may not be read, does not exist, or has changed.
            AwayError: The recording's host does not answer.
            NoRoomError: The disk is too full for a copy at the moment.
        """
        url = _parsed(uri)
        if url.scheme == "file":
            path = self._allowed(uri, url)
            if os.path.isdir(path):
                raise SourceError(f"{public_url(uri)} is a folder without a video file")
            yield _unchanged(OpenSource(uri, path, _mark(uri, path)), mark)
            return
        host = asker, url.netloc
        self._absent.check(uri, host)
        away = partial(self._absent.add, host)
        with ExitStack() as opened:
            ranges = self._tried(uri, partial(self._ranges, uri, url, opened), away)
            if ranges is not None:
                data = RangedRecording(public_url(uri), ranges, self._fetcher.limit, self._pause, away)
                yield _unchanged(
                    OpenSource(uri, data, f"{ranges.size} bytes, version {ranges.version}"), mark
                )
                return
        with tempfile.NamedTemporaryFile(prefix="lookout-recording-") as file:
            size_and_digest = self._fetched(uri, url, file.name, away)
            yield _unchanged(OpenSource(uri, Path(file.name), size_and_digest, fetched=True), mark)

    def _ranges(self, uri: str, url: SplitResult, opened: ExitStack) -> VersionRanges | None:
        """Return a reader of the recording's ranges; None if its host does not support ranges."""
        ranges: UriRanges | ObjectRanges
        if url.scheme in _OBJECTS:
            key = self._key(uri, url)  # before the store is opened, because it rejects forbidden objects
            ranges = ObjectRanges(_bucket(url), key)
        else:
            ranges = opened.enter_context(UriRanges(self._fetcher, uri))
        return ranges if ranges.begin() else None

    def _fetched(self, uri: str, url: SplitResult, path: str, away: Callable[[], object]) -> str:
        """Fetch a recording into a file, and return the mark of the copy."""

        def fetch() -> str:
            with _Copy(uri, path, self._fetcher.limit) as copy:
                if url.scheme in _OBJECTS:
                    self._get_object(uri, url, copy.take)
                else:
                    self._fetcher.stream(uri, copy.take)
                return copy.mark

        return self._tried(uri, fetch, away)

    def _tried(self, uri: str, fetch: Callable[[], T], away: Callable[[], object]) -> T:
        """Call `fetch` until it succeeds, at most `TRIES` times, and return its result. If all attempts fail,
        call `away`.

        Raises:
            AwayError: All attempts failed.
            SourceError: Another attempt would not help.
            NoRoomError: The disk is too full at the moment.
        """
        for attempt in range(1, TRIES + 1):
            try:
                return fetch()
            except BadRecordError as error:
                raise SourceError(f"{public_url(uri)}: {error.detail}") from error
            except NoRoomError:
                raise
            except TransientError as error:
                if attempt == TRIES:
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
                f"{public_url(uri)} is not in a folder that may be read; LOOKOUT_RECORDING_ROOTS allows "
                f"{roots}"
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
        """Return the key of the object with this URI.

        Raises:
            SourceError: The object may not be read.
        """
        key = uri.partition("://")[2].partition("/")[2]
        inside = any(uri == store or uri.startswith(f"{store}/") for store in self._stores)
        if not inside or ".." in key.split("/") or "@" in url.netloc:
            stores = ",".join(self._stores) or "nothing"
            raise SourceError(
                f"{public_url(uri)} is not in a store that may be read; LOOKOUT_RECORDING_STORES allows "
                f"{stores}"
            )
        return key.rstrip("/")


class _AbsentHosts:
    """Remembers hosts that failed, separately for each tenant, so that they are not contacted for some time.
    Thread-safe.

    A job may have thousands of recordings on one host, and every part of a recording opens it again. Without
    this memory, each part would make all attempts again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._times: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def add(self, host: tuple[str, str]) -> None:
        """Record that reading a recording was given up. `host`: the tenant and the host."""
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
                f"{public_url(uri)} is not read, because its host failed {len(recent)} times; the host is "
                f"contacted again in {max(1.0, again_s):.0f} s"
            )

    def _recent(self, host: tuple[str, str]) -> list[float]:
        since = self._clock() - FORGOTTEN_S
        return [moment for moment in self._times.get(host, ()) if moment > since]


class _Copy:
    """Writes a recording to a file, piece by piece, and computes its digest."""

    def __init__(self, uri: str, path: str, limit: int) -> None:
        self._uri, self._limit, self._size = uri, limit, 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by the block
        self._digest = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def take(self, piece: bytes) -> None:
        """Write a piece.

        Raises:
            SourceError: The recording is too large, or the disk fails.
            NoRoomError: The disk is full at the moment.
        """
        self._size += len(piece)
        if self._size > self._limit:
            raise SourceError(
                f"{public_url(self._uri)} has more than {self._limit} bytes: raise LOOKOUT_FETCH_BYTES"
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
        """The mark of the copy: size and digest of the bytes received so far."""
        return f"{self._size} bytes, {self._digest.hexdigest()}"


def _unchanged(source: OpenSource, mark: str | None) -> OpenSource:
    """Return the source if it has this mark, or if `mark` is None.

    Raises:
        SourceError: The source has another mark, so the recording has changed.
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
            f"{public_url(uri)}: scheme {url.scheme!r} is not supported: give a file, http, https, s3, gs or "
            "az URI, such as file:///folder/clip.mp4"
        )
    return url


def _path_of(uri: str, url: SplitResult) -> Path:
    """Return the path of a `file://` URI, or of an absolute path."""
    if "\x00" in uri or "%00" in uri:
        raise SourceError("a path must not contain a null character")
    if uri.startswith("/"):
        return Path(uri)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise SourceError(
            f"{public_url(uri)}: give an absolute path and no host, such as file:///folder/clip.mp4"
        )
    return Path(unquote(url.path, errors="surrogateescape"))


def _mark(uri: str, path: Path) -> str:
    try:
        facts = os.stat(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{public_url(uri)} cannot be read ({why})") from error
    return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"


def _bucket(url: SplitResult) -> Any:
    """Return the opened store of an object's URI.

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
