"""Ranges of what a URI names, by HTTP (RFC 9110, section 14): from a checked address, all of one version."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpcore

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.net.fetch import Deadline, UriFetcher, check_status, connected, passing, request_of
from lookout.video.files.content_version import version_of

RANGE_S = 60.0
"""Seconds for one range at most."""
_CONTENT_RANGE = re.compile(rb"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class UriRanges:
    """A URI that is read in ranges, over one connection while it lasts.

    Every range is asked for with `If-Range`, and every answer must name the first one's version and size:
    what is read is of one version. The host is looked up and checked once.

    Args:
        fetcher: What may be fetched, and from where.
        uri: Which.

    Raises:
        BadRecordError: It may not be fetched.
        TransientError: Its host does not resolve now.
    """

    def __init__(self, fetcher: UriFetcher, uri: str) -> None:
        self._url, address = fetcher.place(uri)
        self._seconds = min(RANGE_S, fetcher.timeout_s)
        self._deadline = Deadline(0.0)
        self._pool = connected(address, self._deadline)
        self.size, self.version = 0, ""
        self.requests = self.fetched = 0

    def begin(self) -> bool:
        """Ask for the first byte.

        Returns:
            Whether the host serves ranges of something whose version it names; `size` and `version` are known
            then.

        Raises:
            BadRecordError: There is nothing of use.
            TransientError: The host does not answer, or says that it cannot just now.
        """
        with passing(self._url):
            answer = self._ask(0, 1)
            check_status(answer, 200, 206, 416)
            self.version = version_of(answer.headers)
            span = _span(answer)
            if answer.status != 206 or span is None or not self.version:
                return False
            self.size = span[2]
            return span[:2] == (0, 0)

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """Read the bytes [start, stop), tried once; where that fails some may have been taken.

        Args:
            start: First byte.
            stop: Behind the last one.
            take: Called with every piece of them, in order.

        Raises:
            BadRecordError: The recording is another one by now (`uri-changed`), or the answer is not what was
                asked for.
            TransientError: The host does not answer, breaks off, or says that it cannot just now.
        """
        wanted = stop - start
        with passing(self._url):
            self._deadline.at = time.monotonic() + self._seconds
            where, headers = request_of(self._url)
            ranged = {**headers, **self._range(start, stop)}
            with self._pool.stream("GET", where, headers=ranged) as answer:
                self.requests += 1
                check_status(answer, 200, 206, 412, 416)
                span, version = _span(answer), version_of(answer.headers)
                if answer.status != 206 or version != self.version or (span and span[2] != self.size):
                    raise BadRecordError("uri-changed", "it changed while it was read")
                if span is None or span[:2] != (start, stop - 1):
                    raise BadRecordError(
                        "bad-range", f"the host does not answer with bytes {start}-{stop - 1}"
                    )
                for piece in answer.iter_stream():
                    wanted -= len(piece)
                    if wanted < 0:
                        raise BadRecordError(
                            "bad-range", "the host sends more bytes than its answer announces"
                        )
                    self.fetched += len(piece)
                    take(piece)
                    self._deadline.left()
        if wanted:
            raise TransientError(f"{self._url.hostname}: {wanted} bytes of a range did not come")

    def _ask(self, start: int, stop: int) -> httpcore.Response:
        """An answer whose body is not read: a host without ranges begins to send the whole."""
        self._deadline.at = time.monotonic() + self._seconds
        where, headers = request_of(self._url)
        ranged = {**headers, "range": f"bytes={start}-{stop - 1}"}
        with self._pool.stream("GET", where, headers=ranged) as answer:
            self.requests += 1
            return answer

    def _range(self, start: int, stop: int) -> dict[bytes | str, bytes | str]:
        return {"range": f"bytes={start}-{stop - 1}", "if-range": self.version}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()


def _span(answer: httpcore.Response) -> tuple[int, int, int] | None:
    """First and last byte of an answer, and the size of the whole; None where it does not say them."""
    headers = {name.lower(): value for name, value in answer.headers}
    match = _CONTENT_RANGE.fullmatch(headers.get(b"content-range", b"").strip())
    if match is None:
        return None
    first, last, size = (int(number) for number in match.groups())
    return (first, last, size) if first <= last < size else None
