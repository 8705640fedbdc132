"""Sources of a recording's bytes: a file, bytes in memory, or a URL that is read in pieces."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential_jitter,
)
from tenacity.stop import stop_base

from lookout.disk import open_regular, write_all
from lookout.text import clean, public_url
from lookout.video.files.content_version import version_of
from lookout.video.segments.container import ByteSource, Video
from lookout.video.segments.types import CodecError, Limits, Reason

if TYPE_CHECKING:
    import httpx

PIECE = 1 << 20
"""Bytes of one range request."""
HELD = 32
"""Pieces of a URL kept in memory."""
TRIES = 3
"""Maximum number of consecutive connections that break without delivering a byte."""
CONNECTIONS = 64
"""Maximum number of connections for one piece, however many bytes each of them delivers."""
_LONGEST_NAME = 4096  # bytes of a path, PATH_MAX
WEB_PAGES = ("text/html", "application/xhtml+xml")
LONGEST = 1 << 40
"""Maximum bytes of a recording at a URL; a server that announces more is rejected."""
PIECE_S = 120.0
"""Deadline in seconds for a whole piece. Single waits have a shorter timeout, but a server that sends a
byte now and then never exceeds it."""


_T = TypeVar("_T")


class Source(Protocol):
    """A recording that can be opened several times in parallel."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    def open(self) -> AbstractContextManager[ByteSource]:
        """Open a new reader, positioned at the beginning.

        Raises:
            CodecError: With UNREADABLE: the recording cannot be read.
        """
        ...


class FileSource:
    """A file on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Open the file."""
        try:
            file = open_regular(self.path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CodecError(Reason.UNREADABLE, f"{clean(self.path)} cannot be read ({why})") from None
        with file:
            yield cast(ByteSource, file)


class BytesSource:
    """A recording in memory."""

    name = "the bytes"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self) -> AbstractContextManager[ByteSource]:
        """Open a reader over the bytes."""
        return nullcontext(io.BytesIO(self._data))


class OpenFileSource:
    """A file object that the caller opened. It stays open, and if it is a file on disk, its position does not
    change.

    Args:
        file: Binary and seekable.
        name: Name in messages; None: the file's own.

    Raises:
        CodecError: The file is a pipe, closed, or open for text or for writing.
    """

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        if isinstance(file, io.TextIOBase) or not _reads_anywhere(file):
            raise CodecError(Reason.REQUEST, "a file object must be open for reading bytes, and seekable")
        self._file, self.name = file, name or str(getattr(file, "name", "the file"))
        self._lock = threading.Lock()
        try:
            self._descriptor: int | None = file.fileno()
        except (OSError, AttributeError):
            self._descriptor = None

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Open a reader with its own position."""
        # A file that another process serves is read in small ranges, so that no byte is fetched
        # unnecessarily.
        buffer = 64 * 1024 if self._descriptor is not None else 16 * 1024
        yield cast(ByteSource, io.BufferedReader(PositionReader(self.read_at, self._size()), buffer))

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset."""
        if self._descriptor is not None:
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def _size(self) -> int:
        if self._descriptor is not None:
            return _file_size(self._descriptor)
        with self._lock:
            return self._file.seek(0, io.SEEK_END)

    def __reduce__(self) -> tuple[type[FileSource], tuple[str]]:
        """Pickle the source by its path, so that another process opens the file again."""
        if not Path(self.name).is_file():
            raise TypeError(
                f"{self.name} is open only in this process, so another process cannot read "
                f"it: give its path instead"
            )
        return FileSource, (os.path.abspath(self.name),)


def _file_size(descriptor: int) -> int:
    """Return the size of an open file in bytes without moving its position; 0 if it is unknown."""
    try:  # does not move the position, which others may share; a confined decoder may not call it
        return os.fstat(descriptor).st_size
    except OSError:
        pass
    try:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        size = os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, place, os.SEEK_SET)
    except OSError:
        return 0
    return size


def _reads_anywhere(file: BinaryIO) -> bool:
    """Whether a file object is readable and seekable. A closed file raises ValueError; a file object of
    another library may lack a method.
    """
    try:
        return file.seekable() and file.readable()
    except (AttributeError, OSError, ValueError):
        return False


class PositionReader(io.RawIOBase):
    """A reader with its own position over bytes that several readers share.

    Args:
        read: Returns up to `size` bytes from an offset.
        size: Size of the whole in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read some bytes; 0 at the end."""
        data = self._read(len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class UrlSource:
    """A recording behind HTTP or HTTPS, fetched in range requests; recently used pieces stay in memory. If
    the server does not support ranges, the whole file is fetched once, into a temporary file.

    It is for addresses that a person typed: hosts are not filtered and redirects are followed. Services use
    an allow-list instead.

    fsspec's HTTP file system is not used, because it reads a range's body without a limit, does not notice if
    the file changes between two ranges, has no deadline for a piece, does not work in a forked process, and
    cannot read from a server that ignores ranges.

    After a broken connection, reading resumes at the next byte (`If-Range`), or at the first byte if the
    server does not support ranges.

    Raises `CodecError` with UNREADABLE if the server does not answer in time, has no such file, sends a web
    page, or announces more than `longest` bytes or more than the disk can hold, or if the file changes while
    it is read.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        piece_s: float = PIECE_S,
        piece: int = PIECE,
        held: int = HELD,
        longest: int = LONGEST,
    ) -> None:
        import httpx

        self.url, self.name = url, public_url(url)  # `url` may contain a password, so it is never shown
        self._piece, self._held, self._piece_s, self._longest = piece, held, piece_s, longest
        self._timeout_s = timeout_s
        self._sockets: list[socket.socket] = []
        self._late = False
        self._timer: threading.Timer | None = None
        self._whole: IO[bytes] | None = None
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=True)
        self._process = os.getpid()
        self._pieces: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._size: int | None = None
        self._tag = ""
        self._version = ""
        self.requests = 0
        self.fetched = 0  # bytes

    @property
    def piece_bytes(self) -> int:
        """Size of a piece in bytes."""
        return self._piece

    @property
    def size(self) -> int:
        """Size of the recording in bytes."""
        if self._size is None:
            self.piece(0)
        assert self._size is not None
        return self._size

    @property
    def version(self) -> str:
        """Version of the bytes (`lookout.video.files.content_version`); empty if the server states no
        version.
        """
        return self._version if self.size else ""

    def look_up(self) -> tuple[int | None, str]:
        """Return the current size and version, by requesting one byte. If the server ignores the range, its
        body is not read.

        Returns:
            The size in bytes, None if the server does not state it; and the version. If the server supports
                ranges, later reads must find the same size and version.

        Raises:
            CodecError: The server does not serve the file.
        """
        self._own_connections()
        with self._lock:
            return self._tried(self._look_up, bytearray(), "the size of the recording")

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Open a reader with its own position over the shared pieces."""
        yield cast(ByteSource, io.BufferedReader(PositionReader(self.read_at, self.size), 64 * 1024))

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset, but not beyond the end of the piece at that offset."""
        if offset >= self.size:
            return b""
        number, begin = divmod(offset, self._piece)
        return self.piece(number)[begin : begin + size]

    def close(self) -> None:
        """Close the connections, and delete the temporary file."""
        self._client.close()
        if self._whole is not None:
            self._whole.close()

    def __reduce__(self) -> tuple[Callable[..., UrlSource], tuple[str, float, int, int]]:
        return _url_source, (self.url, self._timeout_s, self._piece, self._held)

    def _own_connections(self) -> None:
        """Replace the connections and the lock in a forked process, which must not use its parent's."""
        if self._process == os.getpid():
            return
        import httpx

        self._client = httpx.Client(timeout=self._timeout_s, follow_redirects=True)
        self._lock, self._process = threading.Lock(), os.getpid()

    def piece(self, number: int) -> bytes:
        """Return the bytes [number * piece, (number + 1) * piece)."""
        self._own_connections()
        with self._lock:
            if number not in self._pieces:
                self._pieces[number] = self._fetch(number * self._piece)
                while len(self._pieces) > self._held:
                    self._pieces.popitem(last=False)
            self._pieces.move_to_end(number)
            return self._pieces[number]

    def _fetch(self, start: int) -> bytes:
        if self._whole is not None:
            return os.pread(self._whole.fileno(), self._piece, start)
        body = bytearray()  # the piece's bytes, from all its connections
        what = f"{self._piece} bytes from byte {start} on"
        return self._tried(lambda: self._request(start, body), body, what)

    def _tried(self, request: Callable[[], _T], body: bytearray, what: str) -> _T:
        """Run a request; retry it while attempts add bytes to `body`."""
        import httpx

        tries = Retrying(
            stop=_Stalled(body) | stop_after_attempt(CONNECTIONS),
            wait=wait_exponential_jitter(multiplier=0.05, max=1.0),
            retry=retry_if_exception(self._passing),
            reraise=True,
        )
        try:
            return cast(_T, tries(self._in_time, request))
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise self._error(str(error)) from None
        except httpx.RequestError as error:
            if self._late:
                raise self._error(f"{what} took longer than {self._piece_s:g} s") from None
            raise self._error(f"{type(error).__name__}: {error}") from None

    def _passing(self, error: BaseException) -> bool:
        """Whether a retry may help. After the deadline it does not, because the server is too slow."""
        import httpx

        lasting = (httpx.UnsupportedProtocol, httpx.TooManyRedirects)
        return isinstance(error, httpx.RequestError) and not isinstance(error, lasting) and not self._late

    def _in_time(self, request: Callable[[], _T]) -> _T:
        with self._deadline():
            return request()

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Abort the request after `piece_s` by closing its sockets, which makes a wait inside the HTTP
        library fail at once.
        """
        self._late = False
        self._restart_timer()
        try:
            yield
        finally:
            self._stop_timer()

    def _restart_timer(self) -> None:
        self._stop_timer()
        self._timer = threading.Timer(self._piece_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._late = True
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _connected(self, event: str, facts: Mapping[str, Any]) -> None:
        """Record the sockets of new connections, plain or TLS. This is a trace hook of the HTTP library."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._sockets = [*self._sockets[-3:], facts["return_value"].get_extra_info("socket")]

    @contextmanager
    def _asked(self, first: int, last: int) -> Iterator[httpx.Response]:
        """Request a range. Status 200 means that the server ignored the range and sends the whole file."""
        headers = {"range": f"bytes={first}-{last}", "accept-encoding": "identity"}
        if self._version:
            headers["if-range"] = self._version
        traced = {"trace": self._connected}
        with self._client.stream("GET", self.url, headers=headers, extensions=traced) as answer:
            self.requests += 1
            if answer.status_code == 416 and self._size is not None:
                self._check_same(*_facts(answer))
            if answer.status_code not in (200, 206):
                raise self._error(f"the server answered with status {answer.status_code}")
            coding = answer.headers.get("content-encoding", "identity").strip().lower()
            if coding not in {"", "identity"}:
                raise self._error(
                    f"the server sent content encoding {clean(coding, 40)}, which was not requested"
                )
            if answer.headers.get("content-type", "").lower().startswith(WEB_PAGES):
                raise self._error("the server sent a web page, perhaps a login form, instead of a video")
            if answer.status_code == 206:
                self._check_range(answer, first)
            elif self._size is not None:
                self._check_same(*_facts(answer))
                raise self._error("the server stopped serving ranges while the file was read")
            yield answer

    def _check_range(self, answer: httpx.Response, first: int) -> None:
        """Reject an answer whose range is from another version of the recording, or starts at another
        byte.
        """
        size, tag = _facts(answer)
        if size is None:
            raise self._error("the server does not report the size of the file")
        if size > self._longest:
            raise self._error(f"the server announces {str(size)[:20]} bytes; the limit is {self._longest}")
        if self._size is not None:
            self._check_same(size, tag)
        if not answer.headers["content-range"].strip().startswith(f"bytes {first}-"):
            raise self._error(f"the server did not send the range that begins at byte {first}")
        self._size, self._tag, self._version = size, tag, version_of(answer.headers.raw)

    def _check_same(self, size: int | None, tag: str) -> None:
        """Reject a response whose size or version differs from that of earlier bytes."""
        if size is not None and size != self._size:
            raise self._error(f"the file changed while it was read: it had {self._size} bytes, now {size}")
        if tag != self._tag:
            raise self._error(
                f"the file changed while it was read: its version was {clean(self._tag, 80) or 'unstated'}, "
                f"now {clean(tag, 80) or 'unstated'}"
            )

    def _look_up(self) -> tuple[int | None, str]:
        with self._asked(0, 0) as answer:
            return _facts(answer)[0], version_of(answer.headers.raw)

    def _request(self, start: int, body: bytearray) -> bytes:
        """Return a piece. `body` has the bytes that earlier connections delivered before they broke; the
        remaining bytes are requested and added to it.
        """
        if self._size is not None and len(body) == min(self._piece, self._size - start):
            return bytes(body)  # the connection broke after the last byte
        with self._asked(start + len(body), start + self._piece - 1) as answer:
            if answer.status_code == 200:
                return self._take_whole(answer, start)
            for part in answer.iter_raw():
                body += part
                self.fetched += len(part)
                if len(body) > self._piece:
                    break
            assert self._size is not None
            if len(body) != min(self._piece, self._size - start):
                raise self._error(
                    f"{len(body)} bytes or more arrived, but only {self._piece} were requested from byte "
                    f"{start} on"
                )
            return bytes(body)

    def _take_whole(self, answer: httpx.Response, start: int) -> bytes:
        """Store the body of a response that ignored the Range header; return the piece at `start`."""
        folder = tempfile.gettempdir()
        limit = min(self._longest, shutil.disk_usage(folder).free)
        announced = answer.headers.get("content-length", "")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            raise self._error(
                f"the server announces {announced[:20]} bytes, but {folder} has room for only {limit}"
            )
        file = tempfile.TemporaryFile(prefix="lookout-url-", buffering=0)  # noqa: SIM115 (see close)
        try:
            size = self._copy(answer, file, limit)
            if size == 0:
                raise self._error("the server sent no bytes")
            if announced.isdigit() and int(announced) != size:
                raise self._error(f"{size} of {announced} bytes arrived")
        except OSError as error:
            file.close()
            raise self._error(f"{folder}: {error.strerror}") from None
        except BaseException:
            file.close()
            raise
        self._whole, self._size, self._version = file, size, version_of(answer.headers.raw)
        return os.pread(file.fileno(), self._piece, start)

    def _copy(self, answer: httpx.Response, file: IO[bytes], limit: int) -> int:
        """Write a body into a file; return the body's size in bytes. The deadline restarts with every
        piece.
        """
        size = renewed = 0
        for part in answer.iter_raw():
            size += len(part)
            if size > limit:
                raise self._error(f"the server sent more than {limit} bytes")
            write_all(file.fileno(), part)
            if size - renewed >= self._piece:
                renewed = size
                self._restart_timer()
        self.fetched += size
        return size

    def _error(self, why: str) -> CodecError:
        return CodecError(Reason.UNREADABLE, f"{self.name} cannot be read ({why})")


class _Stalled(stop_base):
    """Stops retrying once several consecutive connections have broken without delivering a byte.

    Args:
        body: The bytes received so far.
    """

    def __init__(self, body: bytearray) -> None:
        self._body, self._reached, self._idle = body, 0, 0

    def __call__(self, retry_state: RetryCallState) -> bool:
        """True after `TRIES` such connections."""
        self._idle = 0 if len(self._body) > self._reached else self._idle + 1
        self._reached = len(self._body)
        return self._idle >= TRIES


def _facts(answer: httpx.Response) -> tuple[int | None, str]:
    """Return the size of the whole file (None if the server does not state it) and its validator, strong or
    weak."""
    headers = answer.headers
    size = headers.get("content-length", "")
    if answer.status_code != 200:
        size = headers.get("content-range", "").rpartition("/")[2]
    # Cut, because Python does not convert longer numbers. A size of 1000 digits exceeds any limit anyway.
    bytes_ = int(size[:1000]) if size.isdigit() else None
    return bytes_, headers.get("etag", "") or headers.get("last-modified", "")


def _url_source(url: str, timeout_s: float, piece: int, held: int) -> UrlSource:
    return UrlSource(url, timeout_s=timeout_s, piece=piece, held=held)


def source_of(given: Given) -> Source:
    """Return the source of a path, a URL, bytes or a file object; a source is returned as it is.

    Raises:
        CodecError: With REQUEST: a file object is not seekable, or bytes contain a file's name instead of
            a recording.
    """
    if isinstance(given, bytes) and _names_file(given):
        raise CodecError(
            Reason.REQUEST,
            "bytes must be the content of a recording, but these are the name of a file: give the name as "
            f"text ({clean(os.fsdecode(given), 200)!r})",
        )
    if isinstance(given, (bytes, bytearray, memoryview)):
        return BytesSource(bytes(given))
    if isinstance(given, io.BytesIO) and not given.closed:
        return BytesSource(given.getvalue())
    if isinstance(given, str) and given.lower().startswith(("http://", "https://")):
        return UrlSource(given)
    if given == "":
        raise CodecError(Reason.REQUEST, "the name of the recording is empty: give a path or a URL")
    if isinstance(given, str) and "://" in given and not os.path.exists(given):
        raise CodecError(
            Reason.REQUEST,
            f"{public_url(given)} is not supported: a recording is a file or an http(s) address",
        )
    if isinstance(given, (str, os.PathLike)):
        return FileSource(given)
    if callable(getattr(given, "read", None)):
        return OpenFileSource(cast(BinaryIO, given))
    if not callable(getattr(given, "open", None)):
        raise CodecError(
            Reason.REQUEST, f"a recording is a path, a URL, bytes or a file object, not {given!r:.80}"
        )
    return cast(Source, given)


def _names_file(data: bytes) -> bool:
    """Whether the bytes are an existing path. No recording is as short as a path and has no zero bytes."""
    return 0 < len(data) <= _LONGEST_NAME and b"\0" not in data and os.path.exists(data)


@contextmanager
def open_video(
    source: Source, limits: Limits, *, frame_threads: int = 1, probe: bool = True
) -> Iterator[Video]:
    """Open a source as `Video` without motion vectors. `frame_threads` > 1 decodes several pictures in
    parallel, which is exact only for undamaged streams. `probe`: see `Video`.

    Raises:
        CodecError: The source cannot be decoded; `reason` says why.
    """
    with (
        source.open() as file,
        Video(file, vectors=False, limits=limits, probe=probe, recording=True) as video,
    ):
        if frame_threads > 1:
            video.context.thread_count = frame_threads
            video.context.thread_type = "FRAME"
        yield video


Given = str | os.PathLike[str] | bytes | BinaryIO | Source
"""Forms in which a recording may be given."""
